"""Tool calls and thinking at /v1/chat/completions, through the official client and a real model's
text (E05, D15, API-9, API-10)."""

import json
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from fixtures.scripted import PLAIN, THINKING_TOOLS, scripted_store
from fixtures.server import Server, scripted_server

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    },
}
FIRST = {"city": 'a "quoted" \\ word\n', "unit": None}
SECOND = {"city": "日本 👩‍💻 \ufffd", "days": [1, 2]}
CALLS = "".join(
    f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'
    for arguments in (json.dumps(FIRST, ensure_ascii=False), json.dumps(SECOND))
)
THOUGHT = "<think>why</think>because"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tools")
    scripted_store(folder, names=["plain"], template=PLAIN)
    settings = scripted_store(folder, names=["able"], template=THINKING_TOOLS)
    with scripted_server(settings) as server:
        yield server


def asked(script: str, **fields: object) -> dict[str, object]:
    return {"model": "able", "messages": [{"role": "user", "content": f"SAY:{script}"}], **fields}


def both(client: OpenAI, request: dict[str, object]) -> list[ChatCompletion]:
    """The answer whole, and what the client's helper makes of the stream."""
    with client.chat.completions.stream(**request) as stream:
        stream.until_done()
        streamed = stream.current_completion_snapshot
    return [client.chat.completions.create(**request), streamed]


def test_two_calls_whole_and_in_a_stream(client: OpenAI) -> None:
    """E05, API-10: arguments parse, however they are escaped; the end says tool_calls."""
    for answer in both(client, asked(CALLS, tools=[TOOL])):
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert not choice.message.content
        calls = choice.message.tool_calls
        assert calls is not None
        assert len({call.id for call in calls}) == 2
        assert [call.type for call in calls] == ["function", "function"]
        assert [json.loads(call.function.arguments) for call in calls] == [FIRST, SECOND]


def test_the_deltas_of_calls(client: OpenAI) -> None:
    """E05: indexes 0 and 1; id, type and name once, in the first delta of each."""
    pieces = client.chat.completions.create(**asked(CALLS, tools=[TOOL]), stream=True)
    deltas = [call for piece in pieces for call in piece.choices[0].delta.tool_calls or []]
    assert [call.index for call in deltas if call.id] == [0, 1]
    assert [call.index for call in deltas if call.type] == [0, 1]
    assert [call.index for call in deltas if call.function and call.function.name] == [0, 1]


def test_a_call_that_is_cut(client: OpenAI) -> None:
    """D15: wherever max_tokens falls, the answer is whole and says length."""
    for cut in (3, 11, 20, 45, 60):
        for answer in both(client, asked(CALLS, max_tokens=cut)):
            assert answer.choices[0].finish_reason == "length"


def test_a_call_and_its_result_are_sent_back(client: OpenAI) -> None:
    """OAI-2, E05: what was answered is accepted as it is."""
    first = client.chat.completions.create(**asked(CALLS, tools=[TOOL])).choices[0].message
    assert first.tool_calls is not None
    messages = [
        {"role": "user", "content": f"SAY:{CALLS}"},
        first.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"},
        {"role": "tool", "tool_call_id": first.tool_calls[1].id, "content": "SAY:take a coat"},
    ]
    answer = client.chat.completions.create(model="able", messages=messages, tools=[TOOL])
    assert answer.choices[0].message.content == "take a coat"
    assert answer.choices[0].finish_reason == "stop"


def test_tools_that_are_not_to_be_used_are_not_shown(client: OpenAI) -> None:
    """OAI-2: tool_choice none."""
    tokens = []
    for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}, {"tools": [TOOL]}):
        usage = client.chat.completions.create(**asked("ok", **fields)).usage
        assert usage is not None
        tokens.append(usage.prompt_tokens)
    assert tokens[0] == tokens[1] < tokens[2]


def test_thinking_is_told_apart(client: OpenAI) -> None:
    """API-9, OAI-4: on where nothing is said, in `reasoning`, whole and in a stream."""
    for effort in ({}, {"reasoning_effort": "high"}, {"reasoning_effort": "xhigh"}):
        for answer in both(client, asked(THOUGHT, **effort)):
            message = answer.choices[0].message
            assert message.content == "because"
            assert message.model_extra is not None
            assert message.model_extra["reasoning"] == "why"
    usage = client.chat.completions.create(**asked(THOUGHT)).usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert 0 < (usage.completion_tokens_details.reasoning_tokens or 0) < usage.completion_tokens


def test_no_effort_is_no_thinking(client: OpenAI) -> None:
    """API-9, OAI-2"""
    for answer in both(client, asked("because", reasoning_effort="none")):
        message = answer.choices[0].message
        assert message.content == "because"
        assert not (message.model_extra or {}).get("reasoning")


def test_a_model_without_thinking_or_tools_refuses_them(client: OpenAI) -> None:
    """API-9, API-10: but not to leave them out."""
    for fields, what in (({"reasoning_effort": "low"}, "thinking"), ({"tools": [TOOL]}, "tools")):
        with pytest.raises(openai.BadRequestError, match=f"does not support {what}"):
            client.chat.completions.create(**{**asked("ok", **fields), "model": "plain"})
    for fields in ({"reasoning_effort": "none"}, {"tools": [TOOL], "tool_choice": "none"}):
        answer = client.chat.completions.create(**{**asked("ok", **fields), "model": "plain"})
        assert answer.choices[0].message.content == "ok"
