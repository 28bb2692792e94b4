"""Thinking and tool calls through the Python API: 08 LIB-2, API-9, API-10, API-17; B13, D15."""

import pytest

import forerun
from fixtures import scripted_model
from fixtures.scripted import THINKING_TOOLS, scripted_store
from forerun.base.errors import RequestError
from forerun.models.registry import REGISTRY

TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "find", "arguments": {"b": "é", "a": [1]}}\n</tool_call>'
SAID = f"<think>\nwhy\n</think>\n\nso\n{CALL}\n{CALL}\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("channels")
    settings = scripted_store(folder, names=["able"], template=THINKING_TOOLS)
    scripted_store(folder, names=["plain"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORERUN_MODELS", str(settings.models))
        patch.setenv("FORERUN_THREADS", "1")
        patch.setitem(REGISTRY, scripted_model.ARCHITECTURE, scripted_model.build)
        with forerun.load("able") as able, forerun.load("plain") as plain:
            yield able, plain


@pytest.fixture
def able(models):
    return models[0]


@pytest.fixture
def plain(models):
    return models[1]


def user(said):
    return {"role": "user", "content": f"SAY:{said}"}


def told(answer):
    *chunks, done = answer
    calls = [call for chunk in chunks for call in chunk.tool_calls]
    thinking = "".join(chunk.thinking for chunk in chunks)
    return thinking, "".join(chunk.text for chunk in chunks), calls, done.reason


def test_the_channels_of_an_answer(able):
    """LIB-2, API-10: calls whole, their arguments in the order written."""
    thinking, text, calls, reason = told(able.chat([user(SAID)], tools=[TOOL]))
    assert (thinking, text, reason) == ("why", "so", "stop")
    assert [(call.name, list(call.arguments.items())) for call in calls] == [
        ("find", [("b", "é"), ("a", [1])])
    ] * 2


def test_without_tools_calls_are_text(able):
    thinking, text, calls, _ = told(able.chat([user(SAID)]))
    assert (thinking, text, calls) == ("why", f"so\n{CALL}\n{CALL}\n", [])


def test_thinking_can_be_switched_off(able):
    """PAR-2: the template closes an empty thought, and nothing of it is in the answer."""
    assert told(able.chat([user("\n\nso")], think=False)) == ("", "so", [], "stop")


def test_every_token_has_its_entry(able):
    """UTF-4, through the engine."""
    *chunks, done = able.chat([user(SAID)], tools=[TOOL], logprobs=True)
    entries = [bytes(entry.bytes) for chunk in chunks for entry in chunk.logprobs]
    assert b"".join(entries).decode() == SAID
    assert len(entries) == done.figures.generated_tokens


@pytest.mark.parametrize("budget", [3, 8, 20, 40, 70])
def test_an_answer_cut_anywhere_ends_well(able, budget):
    """Case D15: length, no exception, and a call only if it is whole."""
    thinking, _, calls, reason = told(able.chat([user(SAID)], tools=[TOOL], num_predict=budget))
    assert reason == "length"
    assert calls == []
    assert "why".startswith(thinking) or thinking.startswith("<")


def test_a_stop_string_counts_in_thinking(able):
    assert told(able.chat([user(SAID)], stop=["y"])) == ("wh", "", [], "stop")


def test_what_a_model_cannot_do_is_refused_at_once(able, plain):
    """API-9, API-17."""
    assert able.info.capabilities == ("completion", "tools", "thinking")
    assert plain.info.capabilities == ("completion",)
    with pytest.raises(RequestError, match='"plain:latest" does not support thinking'):
        plain.chat([user("so")], think=True)
    with pytest.raises(RequestError, match='"plain:latest" does not support tools'):
        plain.chat([user("so")], tools=[TOOL])
    assert told(plain.chat([user(SAID)], think=False))[:2] == ("", SAID)


@pytest.mark.parametrize("name", ["thinking", "reasoning", "reasoning_content"])
def test_an_answer_sent_back_is_found_in_the_cache(able, name):
    """Case B13: with its reasoning and calls echoed, all of it but the last token is reused."""
    said = SAID.replace("so\n", "so")  # as the template writes it
    first = list(able.chat([user(said)], tools=[TOOL]))
    thinking, text, calls, _ = told(iter(first))
    spoken = {"role": "assistant", "content": text, name: thinking, "tool_calls": calls}
    result = {"role": "tool", "content": "SAY:done", "tool_name": "find"}
    *_, done = able.chat([user(said), spoken, result], tools=[TOOL])
    before = first[-1].figures
    assert done.figures.cached_tokens >= before.prompt_tokens + before.generated_tokens - 1
