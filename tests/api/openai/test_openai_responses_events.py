"""The stream of one Responses answer and the object it ends with (08 OAI-9, OAI-5; E05, D15).

Every event is checked against the official client's own types, and the client's own state machine
reads every stream.
"""

import json
from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types import responses as wire
from openai.types.responses.parsed_response import ParsedResponse

from forerun.api.openai.responses_dialect import ResponsesDialect
from forerun.api.openai.responses_wire import ResponsesRequest
from forerun.api.response import merged
from forerun.base.errors import RunnerError
from forerun.protocol.events import Chunk, Done, Figures, LogprobEntry, Progress, TopLogprob
from forerun.protocol.requests import ToolCall

FIGURES = Figures(
    prompt_tokens=7,
    cached_tokens=3,
    generated_tokens=5,
    thinking_tokens=2,
    prompt_seconds=0.1,
    generation_seconds=0.1,
)
ADD = ToolCall(name="add", arguments={"text": 'a "quote" 👩'})
RIVAL = TopLogprob(token="b", logprob=-2.0, bytes=[98])
TYPES = {
    "response.created": wire.ResponseCreatedEvent,
    "response.in_progress": wire.ResponseInProgressEvent,
    "response.completed": wire.ResponseCompletedEvent,
    "response.incomplete": wire.ResponseIncompleteEvent,
    "response.failed": wire.ResponseFailedEvent,
    "response.output_item.added": wire.ResponseOutputItemAddedEvent,
    "response.output_item.done": wire.ResponseOutputItemDoneEvent,
    "response.content_part.added": wire.ResponseContentPartAddedEvent,
    "response.content_part.done": wire.ResponseContentPartDoneEvent,
    "response.output_text.delta": wire.ResponseTextDeltaEvent,
    "response.output_text.done": wire.ResponseTextDoneEvent,
    "response.reasoning_text.delta": wire.ResponseReasoningTextDeltaEvent,
    "response.reasoning_text.done": wire.ResponseReasoningTextDoneEvent,
    "response.function_call_arguments.delta": wire.ResponseFunctionCallArgumentsDeltaEvent,
    "response.function_call_arguments.done": wire.ResponseFunctionCallArgumentsDoneEvent,
}
ENDS = ("response.completed", "response.incomplete", "response.failed")

Told = dict[str, object]


def dialect(**fields: object) -> ResponsesDialect:
    return ResponsesDialect(msgspec.convert({"model": "m", **fields}, ResponsesRequest))


def done(reason: str = "stop") -> Done:
    return Done(reason=reason, figures=FIGURES)


def entry(token: str) -> LogprobEntry:
    return LogprobEntry(token=token, logprob=-1.0, bytes=list(token.encode()), top_logprobs=[RIVAL])


def events(data: bytes) -> list[Told]:
    """The stream's events, each checked against the client's type of that name."""
    told = []
    for block in data.decode().split("\n\n"):
        if block and not block.startswith(":"):
            name, content = block.split("\n")
            event = json.loads(content.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            TYPES[event["type"]].model_validate(event, strict=True)
            told.append(event)
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    return told


def stream(chunks: Sequence[Chunk], reason: str = "stop", **fields: object) -> list[Told]:
    asked = dialect(**fields)
    return events(b"".join(map(asked.event, chunks)) + asked.done(done(reason)))


def whole(chunks: Sequence[Chunk], reason: str = "stop", **fields: object) -> Told:
    told: Told = json.loads(dialect(**fields).whole(merged(list(chunks)), done(reason)))
    wire.Response.model_validate(told, strict=True)
    return told


def read_by_client(told: Sequence[Told]) -> ParsedResponse[None]:
    """What the official client makes of a stream."""
    from openai import omit

    state = ResponseStreamState(text_format=omit, input_tools=omit)
    for event in told:
        state.handle_event(TYPES[event["type"]].model_validate(event))
    assert state._completed_response is not None
    return state._completed_response


def without_ids(value: object) -> object:
    """Ids and times are new in every answer."""
    if isinstance(value, dict):
        own = ("id", "created_at", "completed_at", "call_id")
        return {name: without_ids(each) for name, each in value.items() if name not in own}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


def names(told: Sequence[Told]) -> list[object]:
    return [str(each["type"]).removeprefix("response.") for each in told]


def test_a_text_begins_grows_and_ends():
    """OAI-9: the order of the events, one end, and no end mark of the other APIs."""
    asked = dialect()
    data = asked.event(Progress(processed=1, total=7)) + asked.event(Chunk(text="a"))
    data += asked.quiet() + asked.event(Chunk(text="b")) + asked.done(done())
    assert b"[DONE]" not in data
    told = events(data)
    assert names(told) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert told[0]["response"]["status"] == "in_progress"
    assert told[6]["text"] == "ab"
    assert read_by_client(told).output_text == "ab"


def test_thought_text_and_calls_are_items_of_their_own():
    """OAI-9, E05: two calls, ids of their own, arguments as JSON in a string."""
    chunks = [
        Chunk(thinking="h"),
        Chunk(thinking="m", text="I "),
        Chunk(text="add.", tool_calls=[ADD]),
        Chunk(tool_calls=[ToolCall(name="add", arguments="half {", id="call_7")]),
    ]
    told = stream(chunks)
    output = told[-1]["response"]["output"]
    assert [each["type"] for each in output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert output[1]["content"][0]["text"] == "I add."
    assert json.loads(output[2]["arguments"]) == ADD.arguments
    assert output[3]["arguments"] == "half {"
    assert output[3]["call_id"] == "call_7"
    assert output[2]["call_id"].startswith("call_")
    assert [each["id"].partition("_")[0] for each in output] == ["rs", "msg", "fc", "fc"]
    assert len({each["id"] for each in output}) == 4


def test_an_answer_that_was_cut_is_incomplete():
    """D15: the text that came before the cut is there, and its item says that it is not whole."""
    for told in (stream([Chunk(text="a")], "length")[-1]["response"], whole([], "length")):
        assert told["status"] == "incomplete"
        assert told["incomplete_details"] == {"reason": "max_output_tokens"}
        assert told["completed_at"] is None
        assert told["output"][-1]["status"] == "incomplete"
    assert names(stream([], "length"))[-1] == "incomplete"


def test_a_cut_after_a_call_leaves_the_call_whole():
    (call,) = whole([Chunk(tool_calls=[ADD])], "length")["output"]
    assert (call["type"], call["status"]) == ("function_call", "completed")


def test_an_empty_answer_has_an_empty_message():
    (message,) = whole([])["output"]
    assert message["content"][0]["text"] == ""
    assert read_by_client(stream([])).output_text == ""


def test_a_failure_is_the_last_event_and_keeps_what_was_said():
    """OAI-6 in a stream."""
    asked = dialect()
    told = events(asked.event(Chunk(text="a")) + asked.failed(RunnerError("the runner failed: x")))
    response = told[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "the runner failed: x"}
    assert response["output"][0]["content"][0]["text"] == "a"
    assert response["output"][0]["status"] == "incomplete"


def test_a_failure_after_silence_alone_is_a_whole_stream():
    """E19: the head may be out before anything is known."""
    asked = dialect()
    told = events(asked.quiet() + asked.failed(RunnerError("x")))
    assert (names(told)[0], names(told)[-1]) == ("created", "failed")


def test_silence_is_a_comment():
    """E19: what the client's reader of events skips."""
    assert dialect().quiet().startswith(b":")
    assert dialect().quiet().endswith(b"\n\n")


def test_a_refusal_has_the_form_of_openais_errors():
    """OAI-6."""
    refused = json.loads(dialect().refusal(RunnerError("x")))
    assert refused["error"]["message"] == "x"


def test_usage():
    """OAI-4."""
    usage = whole([Chunk(text="a")])["usage"]
    assert usage["input_tokens"] == 7
    assert usage["input_tokens_details"]["cached_tokens"] == 3
    assert (usage["output_tokens"], usage["total_tokens"]) == (5, 12)
    assert usage["output_tokens_details"] == {"reasoning_tokens": 2}


def test_log_probabilities_are_those_of_the_text():
    chunks = [Chunk(text="a", logprobs=[entry("a")]), Chunk(text="b", logprobs=[entry("b")])]
    told = stream(chunks, top_logprobs=1)
    deltas = [each["logprobs"] for each in told if each["type"].endswith("text.delta")]
    assert [[one["token"] for one in each] for each in deltas] == [["a"], ["b"]]
    assert told[-1]["response"]["output"][0]["content"][0]["logprobs"] == [*deltas[0], *deltas[1]]
    assert deltas[0][0]["top_logprobs"] == [{"token": "b", "logprob": -2.0, "bytes": [98]}]


def test_what_was_asked_is_said_again_and_what_is_not_done_is_not_claimed():
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
    asked = {
        "instructions": "Be brief.",
        "metadata": {"user": "me"},
        "max_output_tokens": 9,
        "temperature": 0,
        "tools": [tool],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "low"},
        "store": True,
        "truncation": "auto",
    }
    told = whole([], **asked)
    assert {name: told[name] for name in asked} == {
        **asked,
        "tools": [{**tool, "description": None}],
        "reasoning": {"effort": "low", "summary": None},
        "store": False,
        "truncation": "disabled",
    }


calls = st.builds(ToolCall, name=st.sampled_from("fg"), arguments=st.just({"a": 1}))
chunks_of_any_kind = st.lists(
    st.builds(
        Chunk,
        thinking=st.sampled_from(["", "", "t"]),
        text=st.sampled_from(["", "x", "ü"]),
        tool_calls=st.lists(calls, max_size=2),
        logprobs=st.lists(st.builds(entry, st.sampled_from("xy")), max_size=2),
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(chunks_of_any_kind, st.sampled_from(["stop", "length"]))
def test_a_stream_says_each_item_whole_one_after_the_other(chunks: list[Chunk], reason: str):
    """Law: the last event holds exactly the items that were said to be done, in order, each made
    of its deltas; it is the only end, and text and thought are those of the chunks (OAI-9).
    """
    told = stream(chunks, reason)
    assert [each["type"] in ENDS for each in told] == [False] * (len(told) - 1) + [True]
    output = told[-1]["response"]["output"]
    finished = [each for each in told if each["type"].endswith("item.done")]
    assert [each["item"] for each in finished] == output
    assert [each["output_index"] for each in finished] == list(range(len(output)))
    for index, item in enumerate(output):
        own = [each for each in told if each.get("output_index") == index]
        assert own[0]["type"].endswith("item.added")
        assert own[-1]["type"].endswith("item.done")
        deltas = "".join(str(each["delta"]) for each in own if "delta" in each)
        assert deltas == (item["content"][0]["text"] if "content" in item else item["arguments"])
        assert {each["item_id"] for each in own if "item_id" in each} == {item["id"]}
    both = merged(chunks)
    parts = [part for item in output for part in item.get("content", [])]
    joined = dict.fromkeys(("output_text", "reasoning_text"), "")
    for part in parts:
        joined[part["type"]] += part["text"]
    assert joined == {"output_text": both.text, "reasoning_text": both.thinking}
    if reason == "stop":
        assert read_by_client(told).output_text == both.text


in_order = st.tuples(
    st.lists(st.builds(Chunk, thinking=st.just("t"), logprobs=st.just([entry("t")])), max_size=2),
    st.lists(st.builds(Chunk, text=st.just("x"), logprobs=st.just([entry("x")])), max_size=2),
    st.lists(st.just(Chunk(logprobs=[entry("a token without text")])), max_size=1),
    st.lists(st.builds(Chunk, tool_calls=st.lists(calls, min_size=1, max_size=2)), max_size=2),
).map(lambda parts: [chunk for part in parts for chunk in part])


@settings(max_examples=40, deadline=None)
@given(in_order, st.sampled_from(["stop", "length"]))
def test_a_stream_ends_with_the_object_of_the_whole_answer(chunks: list[Chunk], reason: str):
    """Law: for a model that thinks, speaks and then calls, streaming changes nothing (OAI-9)."""
    streamed = stream(chunks, reason)[-1]["response"]
    assert without_ids(streamed) == without_ids(whole(chunks, reason))
