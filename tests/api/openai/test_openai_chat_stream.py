"""What /v1/chat/completions says of an answer, event by event, read by the official client's own
types and its own accumulator (OAI-4, OAI-5)."""

import json
from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from forerun.api.openai.chat_dialect import ChatDialect
from forerun.api.response import merged
from forerun.base.errors import RunnerError
from forerun.protocol.events import Chunk, Done, Figures, LogprobEntry, Progress, TopLogprob
from forerun.protocol.requests import ToolCall

FIGURES = Figures(
    prompt_tokens=9,
    cached_tokens=4,
    generated_tokens=5,
    prompt_seconds=0.1,
    generation_seconds=0.1,
)
STOP, LENGTH = Done(reason="stop", figures=FIGURES), Done(reason="length", figures=FIGURES)
PROGRESS = Progress(processed=4, total=9)
FIRST = ToolCall(name="first", id="call_1", arguments={"z": 'a "quote" \\ \n', "a": "👩‍💻"})
SECOND = ToolCall(name="second", arguments={"city": "日本 \ufffd"})

texts = st.text(st.sampled_from('ab \n"\\é日👩\u200d\ufffd'), max_size=4)
calls = st.builds(
    ToolCall,
    name=st.sampled_from(["first", "second"]),
    arguments=st.dictionaries(texts, st.one_of(texts, st.none(), st.integers()), max_size=2),
)
entries = st.builds(
    LogprobEntry,
    token=texts,
    logprob=st.just(-0.5),
    bytes=st.just([97]),
    top_logprobs=st.lists(st.just(TopLogprob(token="a", logprob=-0.5, bytes=[97])), max_size=1),
)
chunks = st.builds(
    Chunk,
    thinking=texts,
    text=texts,
    tool_calls=st.lists(calls, max_size=2),
    logprobs=st.lists(entries, max_size=2),
)


def stream(events: Sequence[Progress | Chunk], done: Done, *, include_usage: bool = False) -> str:
    dialect = ChatDialect("m", include_usage=include_usage)
    pieces = [dialect.event(event) for event in events] + [dialect.done(done)]
    return b"".join(pieces).decode()


def pieces_of(text: str) -> list[ChatCompletionChunk]:
    """The events of a stream that is whole, each of the official type."""
    events = text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    assert text.count("[DONE]") == 1
    return [
        ChatCompletionChunk.model_validate_json(event.removeprefix("data: "), strict=True)
        for event in events[:-2]
    ]


def whole(events: Sequence[Chunk], done: Done) -> ChatCompletion:
    body = ChatDialect("m", include_usage=False).whole(merged(list(events)), done)
    return ChatCompletion.model_validate_json(body)


def accumulated(pieces: list[ChatCompletionChunk]) -> ChatCompletion:
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for piece in pieces:
        state.handle_chunk(piece)
    return state.current_completion_snapshot


@settings(max_examples=60)
@given(st.lists(chunks, max_size=4), st.booleans(), st.sampled_from([STOP, LENGTH]))
def test_a_stream_is_the_answer_in_pieces(events: list[Chunk], progress: bool, done: Done) -> None:
    """E03, E05, OAI-5: what the client's accumulator makes of a stream is the whole answer."""
    sent = [PROGRESS, PROGRESS, *events] if progress else events
    final, gathered = accumulated(pieces_of(stream(sent, done))), whole(events, done)
    choice, expected = final.choices[0], gathered.choices[0]
    assert (choice.message.content or "") == (expected.message.content or "")
    assert extra(choice.message, "reasoning") == extra(expected.message, "reasoning")
    assert called(choice) == called(expected)
    assert choice.finish_reason == expected.finish_reason
    assert (choice.logprobs and choice.logprobs.content) == (
        expected.logprobs and expected.logprobs.content
    )


def extra(message: object, name: str) -> str:
    return (message.model_extra or {}).get(name) or ""  # type: ignore[attr-defined]


def called(choice: object) -> list[tuple[str, object]]:
    """Names and arguments, which parse."""
    calls = choice.message.tool_calls or []  # type: ignore[attr-defined]
    assert len({call.id for call in calls}) == len(calls)
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


def test_the_first_event_names_the_role_and_the_last_the_reason() -> None:
    """OAI-5, E19: the first event comes with the first progress of the prompt."""
    pieces = pieces_of(stream([PROGRESS, PROGRESS, Chunk(text="hi")], STOP))
    deltas = [piece.choices[0].delta.model_dump(exclude_unset=True) for piece in pieces]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "hi"}, {}]
    assert [piece.choices[0].finish_reason for piece in pieces] == [None, None, "stop"]
    assert {piece.id for piece in pieces} == {pieces[0].id}
    assert pieces[0].id.startswith("chatcmpl-")
    assert {(p.object, p.model, p.system_fingerprint, p.usage) for p in pieces} == {
        ("chat.completion.chunk", "m", "fp_forerun", None)
    }
    assert ChatDialect("m", include_usage=False).event(PROGRESS)


def test_an_answer_without_events_is_still_whole() -> None:
    """OAI-2: max_tokens 0 ends at once."""
    assert len(pieces_of(stream([], LENGTH))) == 2
    assert whole([], LENGTH).choices[0].message.content == ""


def test_nothing_new_is_no_event() -> None:
    dialect = ChatDialect("m", include_usage=False)
    assert dialect.event(PROGRESS)
    assert dialect.event(Chunk(tokens=[1])) == b""


def test_usage_is_one_more_event_where_it_is_asked_for() -> None:
    """OAI-4, OAI-5"""
    *pieces, last = pieces_of(stream([Chunk(text="hi")], STOP, include_usage=True))
    assert all(piece.usage is None and piece.choices for piece in pieces)
    assert last.choices == []
    assert last.usage == whole([Chunk(text="hi")], STOP).usage
    assert last.usage is not None
    assert last.usage.total_tokens == 14
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == 4


def test_calls_of_a_stream_have_an_index_an_id_and_arguments_as_text() -> None:
    """E05, API-10: indexes go on across events; id, type and name stand once."""
    events = [Chunk(text="so", tool_calls=[FIRST]), Chunk(tool_calls=[SECOND])]
    pieces = pieces_of(stream(events, STOP))
    deltas = [call for piece in pieces for call in piece.choices[0].delta.tool_calls or []]
    assert [call.index for call in deltas] == [0, 1]
    assert [call.type for call in deltas] == ["function", "function"]
    assert deltas[0].id == "call_1"
    assert (deltas[1].id or "").startswith("call_")
    functions = [call.function for call in deltas if call.function is not None]
    assert [function.name for function in functions] == ["first", "second"]
    assert functions[0].arguments == r'{"z":"a \"quote\" \\ \n","a":"👩‍💻"}'
    assert json.loads(functions[1].arguments or "") == SECOND.arguments
    assert pieces[-1].choices[0].finish_reason == "tool_calls"


def test_calls_of_a_whole_answer() -> None:
    """E05, OAI-4: content is null where there is none, and there is no index."""
    body = json.loads(ChatDialect("m", include_usage=False).whole(Chunk(tool_calls=[FIRST]), STOP))
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert call.keys() == {"id", "type", "function"}
    assert json.loads(call["function"]["arguments"]) == FIRST.arguments
    assert (
        "tool_calls"
        not in json.loads(ChatDialect("m", include_usage=False).whole(Chunk(text="hi"), STOP))[
            "choices"
        ][0]["message"]
    )


def test_an_answer_that_was_cut_says_so() -> None:
    """D15: whatever calls it holds."""
    events = [Chunk(tool_calls=[FIRST]), Chunk(text='<tool_call>{"na')]
    assert pieces_of(stream(events, LENGTH))[-1].choices[0].finish_reason == "length"
    assert whole(events, LENGTH).choices[0].finish_reason == "length"


def test_thinking_is_reasoning() -> None:
    """OAI-4, API-9"""
    events = [Chunk(thinking="why"), Chunk(thinking=".", text="because")]
    pieces = pieces_of(stream(events, STOP))
    assert [extra(piece.choices[0].delta, "reasoning") for piece in pieces] == ["", "why", ".", ""]
    message = whole(events, STOP).choices[0].message
    assert (extra(message, "reasoning"), message.content) == ("why.", "because")


def test_log_probabilities_have_every_field_that_clients_read() -> None:
    """API-16"""
    entry = LogprobEntry(token="é", logprob=-0.5, bytes=[195, 169])
    rival = TopLogprob(token="e", logprob=-1.5, bytes=[101])
    events = [Chunk(text="é", logprobs=[entry]), Chunk(logprobs=[entry])]
    body = json.loads(ChatDialect("m", include_usage=False).whole(events[0], STOP))
    assert body["choices"][0]["logprobs"] == {
        "content": [{"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": []}]
    }
    counts = [
        len(piece.choices[0].logprobs.content or [])
        for piece in pieces_of(stream(events, STOP))
        if piece.choices[0].logprobs is not None
    ]
    assert counts == [1, 1]
    with_rival = Chunk(text="é", logprobs=[msgspec.structs.replace(entry, top_logprobs=[rival])])
    logprobs = whole([with_rival], STOP).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.content[0].top_logprobs[0].token == "e"


def test_a_stream_that_breaks_off_says_so_and_is_not_done() -> None:
    """OAI-6: the client raises the error that an event holds."""
    dialect = ChatDialect("m", include_usage=True)
    last = dialect.failed(RunnerError("the runner failed: out of memory")).decode()
    assert json.loads(last.removeprefix("data: ")) == {
        "error": {
            "message": "the runner failed: out of memory",
            "type": "api_error",
            "param": None,
            "code": None,
        }
    }
    assert last.endswith("\n\n")
    assert "[DONE]" not in last


def test_silence_is_broken_by_a_comment() -> None:
    """E19: the client passes over it."""
    dialect = ChatDialect("m", include_usage=False)
    written = dialect.quiet() + dialect.event(PROGRESS) + dialect.quiet() + dialect.done(STOP)
    events = [event.data for event in SSEDecoder().iter_bytes(iter([written]))]
    assert written.count(b"\n: ") == 1
    assert len(events) == 3
    assert events[-1] == "[DONE]"
