"""Laws of native answers and of their images (08 API-11, API-15; E05)."""

import base64
import json
import textwrap
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forerun.api.ollama.dialect import ChatDialect, GenerateDialect, NativeDialect
from forerun.api.ollama.images import decode_image
from forerun.api.response import merged
from forerun.protocol.events import Chunk, Done, Figures, LogprobEntry, Progress
from forerun.protocol.requests import ToolCall

words = st.text("aé\n\ufffd👩", max_size=3)
calls = st.builds(
    ToolCall,
    name=st.sampled_from("fg"),
    arguments=st.dictionaries(words, words, max_size=2),
    id=st.sampled_from(["c1", "c2"]),
)
entries = st.builds(
    LogprobEntry, token=words, logprob=st.floats(-9, 0), bytes=st.lists(st.integers(0, 255))
)
chunks = st.builds(
    Chunk,
    thinking=words,
    text=words,
    tool_calls=st.lists(calls, max_size=2),
    logprobs=st.lists(entries, max_size=2),
)
progress = st.builds(Progress, processed=st.just(1), total=st.just(2))
figures = st.builds(
    Figures,
    prompt_tokens=st.integers(0, 99),
    cached_tokens=st.just(0),
    generated_tokens=st.integers(0, 99),
    prompt_seconds=st.floats(0, 9),
    generation_seconds=st.floats(0, 9),
)
ends = st.builds(Done, reason=st.sampled_from(["stop", "length"]), figures=figures)
TEXTS, LISTS = ("response", "content", "thinking"), ("tool_calls", "logprobs")


def gathered(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream: texts and lists joined, all else as the last object says."""
    whole: dict[str, Any] = {}
    for read in lines:
        message = read.pop("message", {})
        for name, value in {**read, **message}.items():
            whole[name] = whole[name] + value if name in whole and name in TEXTS + LISTS else value
    for moment in ("created_at", "total_duration"):
        del whole[moment]
    return whole


@given(st.sampled_from([ChatDialect, GenerateDialect]), st.lists(chunks | progress), ends)
def test_a_stream_gathers_to_the_whole_answer(
    kind: type[NativeDialect], events: list[Chunk | Progress], done: Done
) -> None:
    """08 API-15: the pieces of a stream, put together, are the answer that is not streamed."""
    streaming, whole = kind("m", 0.0), kind("m", 0.0)
    pieces = [streaming.event(event) for event in events]
    lines = [json.loads(piece) for piece in [*filter(None, pieces), streaming.done(done)]]
    assert [read["done"] for read in lines] == [False] * (len(lines) - 1) + [True]
    chunk = merged([event for event in events if isinstance(event, Chunk)])
    assert gathered(lines) == gathered([json.loads(whole.whole(chunk, done))])


@given(st.lists(chunks))
def test_calls_count_up_from_zero(events: list[Chunk]) -> None:
    """E05: the calls of one answer have the indices 0, 1, 2, ... in their order."""
    dialect = ChatDialect("m", 0.0)
    lines = [json.loads(piece) for event in events if (piece := dialect.event(event))]
    found = [call for read in lines for call in read["message"].get("tool_calls", [])]
    assert [call["function"]["index"] for call in found] == list(range(len(found)))


@given(
    st.binary(min_size=1, max_size=60),
    st.sampled_from(["", "data:image/png;base64,", "data:;base64,"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_every_form_of_base64_is_the_same_data(
    data: bytes, prefix: str, url_safe: bool, lines: bool, padded: bool
) -> None:
    """08 API-11: a data address, the other alphabet, lines, no padding: the same bytes."""
    text = (base64.urlsafe_b64encode if url_safe else base64.b64encode)(data).decode()
    text = text if padded else text.rstrip("=")
    text = "\r\n".join(textwrap.wrap(text, 5)) if lines else text
    assert decode_image(prefix + text, "images[0]") == data
