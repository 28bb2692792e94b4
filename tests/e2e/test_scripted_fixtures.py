"""What other tests stand on: the scripted model in its runner and behind its server."""

import json
import signal
import time
import urllib.request

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.checkpoints import chunked_logits
from fixtures.scripted import (
    OPENED_THINKING,
    SCRIPTED_RUNNER,
    THINKING_TOOLS,
    scripted_store,
)
from fixtures.scripted_model import ScriptedTarget
from fixtures.server import alive, scripted_server
from fixtures.tiny import TURN_END, TURN_START
from forerun.base.errors import ForerunError, LoadError, RunnerError
from forerun.protocol.events import Chunk
from forerun.protocol.requests import CompletionRequest, EmbedRequest, Message
from forerun.scheduler.runners import RunnerProcess
from forerun.store.names import ModelName
from forerun.store.store import Store

LONG = "x" * 1500  # three chunks


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripted")
    scripted_store(folder, names=("opened",), template=OPENED_THINKING)
    return scripted_store(folder, names=("one", "two"), template=THINKING_TOOLS)


@pytest.fixture(scope="module")
def runner(store):
    with RunnerProcess("one", store, module=SCRIPTED_RUNNER) as process:
        process.load()
        yield process.connection


def said(connection, *contents, **rest):
    """What is answered to turns of user and assistant, in turn, and how it ended."""
    messages = [
        Message(role="assistant" if place % 2 else "user", content=content)
        for place, content in enumerate(contents)
    ]
    *events, done = connection.complete(CompletionRequest(messages=messages, **rest))
    chunks = [event for event in events if isinstance(event, Chunk)]
    return "".join(chunk.thinking + chunk.text for chunk in chunks), done


def test_it_says_what_it_is_told(runner):
    assert said(runner, "STEP_MS=1 SAY:hé 👩‍👩‍👧 漢\nSAY")[0] == "hé 👩‍👩‍👧 漢\nSAY"
    assert said(runner, "an echo")[0] == "an echo"
    assert said(runner, "SAY:")[0] == ""
    text, done = said(runner, "SAY:one", "one", "SAY:two")
    assert (text, done.reason, done.figures.generated_tokens) == ("two", "stop", 3)


def test_resumed_and_continued_answers_are_whole(runner):
    """A prompt whose beginning the caches hold, and one that ends inside the answer."""
    before = said(runner, "SAY:one")[1]
    text, done = said(runner, "SAY:one", "one", "SAY:two")
    assert text == "two"
    assert done.figures.cached_tokens >= before.figures.prompt_tokens
    assert said(runner, "SAY:one two", "one ")[0] == "two"
    assert said(runner, "SAY:one")[0] == "one"


def test_what_a_template_begins_is_not_said_again(runner, store):
    assert said(runner, "SAY:<thin air>", think=False)[0] == "<thin air>"
    with RunnerProcess("opened", store, module=SCRIPTED_RUNNER) as process:
        process.load()
        assert "why" in said(process.connection, "SAY:why</think>because")[0]


def test_raw_prompts_end_with_a_turn_or_a_line(runner):
    def raw(prompt):
        events = list(runner.complete(CompletionRequest(prompt=prompt)))
        return "".join(event.text for event in events if isinstance(event, Chunk))

    assert raw("SAY:a\nb<|im_end|>") == "a\nb"
    assert raw("SAY:hello\n") == "hello"
    assert raw("SAY:hello") == "\nhello"
    assert raw("hello") == "\nhello"


def test_a_prompt_slows_and_breaks_forwards(runner):
    started = time.monotonic()
    assert said(runner, "STEP_MS=100 SAY:abc")[0] == "abc"
    assert time.monotonic() - started > 0.4
    started = time.monotonic()
    text, done = said(
        runner, "ENDLESS CHUNK_MS=100 " + "x" * 1500 + "SAY:ab", options={"num_predict": 5}
    )
    assert (text, done.reason) == ("ababa", "length")
    assert time.monotonic() - started > 0.3
    with pytest.raises(ForerunError, match="told to fail"):
        said(runner, "FAIL_AT=2 SAY:abc")
    assert said(runner, "SAY:abc")[0] == "abc"


@settings(max_examples=20)
@given(st.text("aS<>👩\n", max_size=12), st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_the_model_says_the_same_however_its_prompt_is_cut(script, chunks):
    """contract/model law 1."""
    turn, end = [TURN_START], [TURN_END]
    asked = [*turn, *b"user\nSAY:", *script.encode(), *end, *b"\n"]
    tokens = [*asked, *turn, *b"assistant\n"]
    model = ScriptedTarget(torch.ones(1), 1000)
    whole = chunked_logits(model, tokens, [len(tokens)])
    assert torch.equal(whole, chunked_logits(model, tokens, chunks))
    assert int(whole[-1].argmax()) == (*script.encode(), TURN_END)[0]


def test_texts_embed_apart(runner):
    one, two = runner.embed(EmbedRequest(texts=["SAY:one", "two"])).vectors
    assert one != two


def test_loads_can_be_slow_or_fail(tmp_path):
    slow = scripted_store(tmp_path, names=("slow",), load_ms=400)
    scripted_store(tmp_path, names=("bad",), load_error="no luck")
    with RunnerProcess("slow", slow, module=SCRIPTED_RUNNER) as process:
        assert process.load().load_seconds > 0.4
        with pytest.raises(RunnerError, match="the scripted model was told to die"):
            said(process.connection, "DIE_AT=2 SAY:abc")
    with (
        RunnerProcess("bad", slow, module=SCRIPTED_RUNNER) as process,
        pytest.raises(LoadError, match="no luck"),
    ):
        process.load()


def test_each_name_is_a_model_of_its_own(store):
    models = Store(store.models)
    names = [ModelName.parse(name) for name in ("one", "two", "opened")]
    assert len({models.get(name).digest for name in names}) == 3


def test_the_server_answers_and_ends(store):
    with scripted_server(store) as server:
        with urllib.request.urlopen(f"{server.url}/api/version", timeout=20) as answer:
            assert json.load(answer)["forerun"]
        assert server.runners() == []
        assert server.stop() in (0, -signal.SIGTERM)
        assert not alive(server.pid)
