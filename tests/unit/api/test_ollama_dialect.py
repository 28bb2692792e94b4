"""Events in the words of the native API (08 API-5, API-7, API-8, API-14..16; E05, E19)."""

import json
import re
import time
from typing import Any

import pytest

from forerun.api.ollama.dialect import ChatDialect, GenerateDialect, NativeDialect
from forerun.base.errors import ForerunError
from forerun.protocol.events import Chunk, Done, Figures, LogprobEntry, Progress, TopLogprob
from forerun.protocol.requests import ToolCall

FIGURES = Figures(
    prompt_tokens=10,
    cached_tokens=4,
    generated_tokens=3,
    prompt_seconds=0.25,
    generation_seconds=0.5,
    drafted_tokens=2,
    accepted_tokens=1,
    load_seconds=9.0,
    first_token_seconds=0.125,
)
DONE = Done(reason="stop", figures=FIGURES)


def line(data: bytes) -> dict[str, Any]:
    """One JSON line and no more."""
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    read: dict[str, Any] = json.loads(data)
    return read


def without_times(reply: dict[str, Any]) -> dict[str, Any]:
    """RFC 3339 in UTC, and a duration that runs."""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", reply.pop("created_at"))
    assert reply.pop("total_duration", 1) > 0
    return reply


@pytest.fixture
def chat() -> ChatDialect:
    return ChatDialect("Tiny", time.monotonic() - 1)


@pytest.fixture
def generate() -> GenerateDialect:
    return GenerateDialect("Tiny", time.monotonic() - 1)


def test_pieces_of_text(chat: ChatDialect, generate: GenerateDialect) -> None:
    """08 API-5, API-7, API-15: a model has the name that the client gave it."""
    chunk = Chunk(thinking="why", text="hi", tokens=[1, 2])
    assert without_times(line(generate.event(chunk))) == {
        "model": "Tiny",
        "response": "hi",
        "thinking": "why",
        "done": False,
    }
    assert without_times(line(chat.event(chunk))) == {
        "model": "Tiny",
        "message": {"role": "assistant", "content": "hi", "thinking": "why"},
        "done": False,
    }


def test_the_end_has_the_figures(chat: ChatDialect, generate: GenerateDialect) -> None:
    """08 API-5, API-8: durations are nanoseconds, and the whole prompt is counted."""
    figures = {
        "done": True,
        "done_reason": "stop",
        "load_duration": 0,
        "prompt_eval_count": 10,
        "prompt_eval_duration": 250_000_000,
        "eval_count": 3,
        "eval_duration": 500_000_000,
        "cached_count": 4,
        "drafted_count": 2,
        "accepted_count": 1,
        "first_token_duration": 125_000_000,
    }
    assert without_times(line(generate.done(DONE))) == {"model": "Tiny", "response": "", **figures}
    message = {"role": "assistant", "content": ""}
    assert without_times(line(chat.done(DONE))) == {"model": "Tiny", "message": message, **figures}


def test_figures_of_nothing_are_zeros(generate: GenerateDialect) -> None:
    """08 API-5: a count of 0 is there, and not absent."""
    nothing = Figures(
        prompt_tokens=4, cached_tokens=0, generated_tokens=0, prompt_seconds=0, generation_seconds=0
    )
    end = line(generate.done(Done(reason="length", figures=nothing)))
    assert [end[name] for name in ("eval_count", "cached_count", "drafted_count")] == [0, 0, 0]


def test_the_duration_counts_from_the_arrival(chat: ChatDialect) -> None:
    """08 API-5: the request came a second before."""
    assert line(chat.done(DONE))["total_duration"] >= 1_000_000_000


@pytest.mark.parametrize("reason", ["load", "unload"])
def test_loads_have_no_figures_of_an_answer(generate: GenerateDialect, reason: str) -> None:
    """08 API-6, API-8."""
    end = without_times(json.loads(generate.whole(Chunk(), Done(reason=reason, figures=FIGURES))))
    assert end == {
        "model": "Tiny",
        "response": "",
        "done": True,
        "done_reason": reason,
        "load_duration": 0,
    }


def test_calls_are_numbered_and_named(chat: ChatDialect) -> None:
    """08 API-10, E05: numbers go on through the stream; arguments are objects in their order."""
    first = chat.event(Chunk(tool_calls=[ToolCall(name="f", arguments={"b": "é\n", "a": [1]})]))
    rest = chat.event(Chunk(tool_calls=[ToolCall(name="f"), ToolCall(name="g", id="mine")]))
    calls = [call for data in (first, rest) for call in line(data)["message"]["tool_calls"]]
    assert [call["function"] for call in calls] == [
        {"index": 0, "name": "f", "arguments": {"b": "é\n", "a": [1]}},
        {"index": 1, "name": "f", "arguments": {}},
        {"index": 2, "name": "g", "arguments": {}},
    ]
    assert list(calls[0]["function"]["arguments"]) == ["b", "a"]
    assert all(re.fullmatch("call_[0-9a-f]{8}", call["id"]) for call in calls[:2])
    assert calls[0]["id"] != calls[1]["id"]
    assert calls[2]["id"] == "mine"


@pytest.mark.parametrize("arguments", ["half a {", 5, [1]])
def test_arguments_that_are_no_object_are_wrapped(chat: ChatDialect, arguments: object) -> None:
    """08 API-10: a client's own check would lose the whole answer."""
    data = chat.event(Chunk(tool_calls=[ToolCall(name="f", arguments=arguments)]))
    (call,) = line(data)["message"]["tool_calls"]
    assert call["function"]["arguments"] == {"arguments": arguments}


def test_log_probabilities(generate: GenerateDialect) -> None:
    """08 API-16."""
    top = [TopLogprob(token="b", logprob=-2.0, bytes=[98])]
    entry = LogprobEntry(token="a", logprob=-0.5, bytes=[97], top_logprobs=top)
    assert line(generate.event(Chunk(tokens=[97], logprobs=[entry])))["logprobs"] == [
        {
            "token": "a",
            "logprob": -0.5,
            "bytes": [97],
            "top_logprobs": [{"token": "b", "logprob": -2.0, "bytes": [98]}],
        }
    ]


@pytest.mark.parametrize("dialect", [ChatDialect("m", 0.0), GenerateDialect("m", 0.0)])
def test_nothing_is_sent_for_nothing(dialect: NativeDialect) -> None:
    """E19: progress waits until there was silence, then it is told in an empty piece."""
    assert dialect.event(Chunk(tokens=[5])) == b""
    assert "progress" not in line(dialect.quiet())
    assert dialect.event(Progress(processed=0, total=9)) == b""
    quiet = line(dialect.quiet())
    assert quiet["progress"] == {"processed": 0, "total": 9}
    assert quiet["done"] is False
    assert quiet.get("response", quiet.get("message")) in ("", {"role": "assistant", "content": ""})
    dialect.event(Chunk(text="a"))
    assert "progress" not in line(dialect.quiet())


def test_errors_are_one_line(chat: ChatDialect) -> None:
    """08 API-14: the same before a stream and in it."""
    error = ForerunError("it failed\nat length")
    assert line(chat.failed(error)) == {"error": "it failed"}
    assert json.loads(chat.refusal(error)) == {"error": "it failed"}
