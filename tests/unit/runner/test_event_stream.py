"""Events on their way to a reader: 05 DEC-8."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.base.errors import CancelledError
from forerun.protocol.events import Chunk, Done, Failed, Figures, LogprobEntry, Progress
from forerun.runner.stream import EventStream, StreamLimits

DONE = Done(
    reason="stop",
    figures=Figures(
        prompt_tokens=1,
        cached_tokens=0,
        generated_tokens=1,
        prompt_seconds=0.0,
        generation_seconds=0.0,
    ),
)


def test_a_reader_gets_what_was_written_and_then_the_end():
    stream = EventStream()
    stream.put(Progress(processed=1, total=2))
    stream.put(DONE)
    assert list(stream) == [Progress(processed=1, total=2), DONE]


@given(st.lists(st.text(max_size=3), max_size=10))
def test_taking_joins_neighbouring_chunks_and_loses_nothing(texts):
    stream = EventStream()
    for place, text in enumerate(texts):
        entry = LogprobEntry(token=text, logprob=-1.0, bytes=list(text.encode()))
        stream.put(Chunk(text=text, tokens=[place], logprobs=[entry]))
    taken = stream.take()
    assert len(taken) == min(1, len(texts))
    assert "".join(event.text for event in taken) == "".join(texts)
    assert [token for event in taken for token in event.tokens] == list(range(len(texts)))
    assert [entry.token for event in taken for entry in event.logprobs] == texts


def test_a_full_stream_makes_the_writer_wait_until_the_reader_takes():
    stream = EventStream(StreamLimits(events=2))
    written = threading.Event()

    def write():
        for token in range(3):
            stream.put(Chunk(tokens=[token]))
        written.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert not written.wait(0.05)
    stream.take()
    assert written.wait(5)
    thread.join()
    assert stream.waited_s >= 0.04
    assert stream.take() == [Chunk(tokens=[2])]


def test_bytes_count_towards_a_full_stream():
    stream = EventStream(StreamLimits(size=100, stall_s=0.01))
    stream.put(Chunk(text="x" * 100))
    with pytest.raises(CancelledError):
        stream.put(Chunk(text="y"))


def test_a_reader_that_takes_nothing_for_the_stall_limit_is_cancelled():
    """One stalled reader must not hold the only device thread for ever."""
    stream = EventStream(StreamLimits(events=1, stall_s=0.05))
    stream.put(Chunk(text="a"))
    started = time.monotonic()
    with pytest.raises(CancelledError):
        stream.put(Chunk(text="b"))
    assert 0.04 < time.monotonic() - started < 5
    assert stream.cancelled.is_set()
    stream.put(Failed(status=499, message="cancelled"))  # the last event always finds room


def test_a_reader_that_leaves_frees_a_waiting_writer_at_once():
    stream = EventStream(StreamLimits(events=1))
    stream.put(Chunk(text="a"))
    threading.Timer(0.05, stream.cancel).start()
    started = time.monotonic()
    with pytest.raises(CancelledError):
        stream.put(Chunk(text="b"))
    assert time.monotonic() - started < 10  # and not the stall limit


def test_nothing_follows_the_last_event():
    stream = EventStream()
    stream.put(DONE)
    with pytest.raises(AssertionError):
        stream.put(DONE)


def test_a_reader_that_comes_again_by_itself_is_not_woken():
    """DEC-8: events are joined while it rests, and waking it for each would only cost time."""
    stream, woken = EventStream(), []
    stream.on_event(lambda: woken.append("now"))
    stream.put(Chunk(text="a"))
    stream.put(Chunk(text="b"))
    assert len(woken) == 2  # once when it came, once for "a"
    assert stream.take() == [Chunk(text="ab")]
    stream.put(Chunk(text="c"))
    assert len(woken) == 2
    assert stream.take() == [Chunk(text="c")]
    assert stream.take() == []  # from now on it waits
    stream.put(Chunk(text="d"))
    assert len(woken) == 3
    stream.put(DONE)
    assert len(woken) == 4  # whatever it does


def test_what_came_before_the_reader_is_told_at_once():
    stream = EventStream()
    stream.put(Chunk(text="a"))
    woken = []
    stream.on_event(lambda: woken.append(len(stream.take())))
    assert woken == [1]
