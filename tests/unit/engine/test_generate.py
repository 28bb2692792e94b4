"""A request from end to end over a toy target: 05 REQ, PRE, DEC, THR-2."""

import dataclasses
import logging
import math

import pytest
import torch

from fixtures.toy import EOS, VOCABULARY, ListSink, ToyTarget, ask, endless, loaded_toy
from forerun.base.errors import DamagedModelError, RequestError
from forerun.prefix.prefix_cache import PrefixCache
from forerun.sampling.options import SamplingOptions
from forerun.sampling.sampler import Sampler


def test_one_prompt_token_is_kept_back_and_chunks_are_as_large_as_allowed():
    """PRE-1, PRE-4: progress is reported after each chunk."""
    target = ToyTarget(endless)
    sink = ask(loaded_toy(target, chunk=4), [1] * 10, 0)
    assert target.forwards == [(0, 4), (4, 4), (8, 1)]
    assert sink.calls == ["started 10 0", "prefilled 4", "prefilled 8", "prefilled 9", "finish"]


def test_a_full_cache_hit_evaluates_one_token():
    """PRE-7."""
    target = ToyTarget(endless)
    loaded = loaded_toy(target)
    ask(loaded, [1, 2, 3], 1)
    target.forwards.clear()
    sink = ask(loaded, [1, 2, 3], 1)
    assert target.forwards == [(2, 1)]
    assert sink.calls[0] == "started 3 2"
    assert sink.figures.cached_tokens == 2


def test_a_budget_of_nothing_evaluates_the_prompt_and_draws_nothing():
    """PRP-6."""
    target = ToyTarget(endless)
    loaded = loaded_toy(target)
    sink = ask(loaded, [1, 2, 3], 0)
    assert (sink.reason, sink.figures.generated_tokens, sink.tokens) == ("length", 0, [])
    assert loaded.caches[0].offset == 2


@pytest.mark.parametrize("look_ahead", [0, 1])
def test_the_budget_ends_a_text_without_stop_token(look_ahead):
    """DEC-3, DEC-5; case G07: a model that never ends stops where its budget does."""
    sink = ask(loaded_toy(ToyTarget(endless), look_ahead=look_ahead), [1, 2, 3], 7)
    assert (sink.reason, len(sink.tokens)) == ("length", 7)
    assert sink.figures.prompt_tokens == 3
    assert sink.figures.generated_tokens == 7
    assert sink.figures.prompt_seconds >= 0
    assert sink.figures.generation_seconds > 0


@pytest.mark.parametrize("look_ahead", [0, 1])
def test_the_next_turn_reuses_prompt_and_answer(look_ahead):
    target = ToyTarget(endless)
    loaded = loaded_toy(target, look_ahead=look_ahead)
    first = ask(loaded, [1, 2, 3], 5)
    second = ask(loaded, [1, 2, 3, *first.tokens, 7], 5)
    assert second.figures.cached_tokens == 7  # the answer's last token was not evaluated


def test_a_queued_request_that_was_cancelled_does_nothing():
    """THR-2."""
    target, sink = ToyTarget(), ListSink()
    sink.cancelled.set()
    ask(loaded_toy(target), [1], sink=sink)
    assert sink.calls == ["fail"]
    assert sink.error.status == 499
    assert target.forwards == []


def test_a_cancelled_prefill_stops_within_a_chunk_and_is_not_lost():
    """DEC-10, 02 CAN-2: the retry starts where the attempt stopped."""
    target = ToyTarget(endless)
    loaded = loaded_toy(target, chunk=2)
    cancelled = ask(loaded, [1] * 10, sink=ListSink(cancel_at=2))
    assert cancelled.error.status == 499
    assert target.forwards == [(0, 2), (2, 2)]
    assert ask(loaded, [1] * 10, 1).figures.cached_tokens == 4


def test_an_error_fails_its_request_alone():
    """REQ-3: whatever broke, the next request finds everything released and answers the same."""
    fresh = ask(loaded_toy(ToyTarget(endless)), [1, 2, 3], 5)
    target = ToyTarget(endless)
    loaded = loaded_toy(target)
    target.fails_at = 4
    broken = ListSink()
    with pytest.raises(RuntimeError, match="the toy broke"):
        ask(loaded, [1, 2, 3], 5, sink=broken)
    assert broken.calls[-1] == "fail"
    assert broken.error.status == 500
    assert "the toy broke" in str(broken.error)
    assert ask(loaded, [1, 2, 3], 5).tokens == fresh.tokens


def test_running_out_of_memory_is_said_with_a_remedy():
    """Case G07: a clean error, and the next request is answered."""
    target = ToyTarget(endless)
    loaded = loaded_toy(target)
    target.fails_at, target.error = 2, torch.OutOfMemoryError("tried to allocate 20 GiB")
    sink = ListSink()
    with pytest.raises(torch.OutOfMemoryError):
        ask(loaded, [1, 2, 3], 5, sink=sink)
    assert sink.error.status == 503
    assert "num_ctx" in str(sink.error)
    assert ask(loaded, [1, 2, 3], 5).reason == "length"


def test_a_request_that_allows_no_token_is_refused_and_the_next_one_works():
    """04 ORD-9 without a grammar."""
    target = ToyTarget(endless, peak=0.0)
    loaded = loaded_toy(target)
    forbidden = SamplingOptions(logit_bias=((99, 1.0),))
    refused = ask(loaded, [1, 2], sampling=forbidden)
    assert isinstance(refused.error, RequestError)
    assert ask(loaded, [1, 2], 3).figures.generated_tokens == 3


def test_a_model_that_computes_no_numbers_is_named_and_the_thread_goes_on():
    """04 ORD-9: its weights are at fault, and no state of ours."""
    damaged = ask(loaded_toy(ToyTarget(endless, peak=math.nan)), [1, 2], 3)
    assert isinstance(damaged.error, DamagedModelError)
    assert damaged.tokens == []


def test_the_answer_ends_at_a_stop_token_that_is_not_shown():
    sink = ask(loaded_toy(ToyTarget()), [0, 1])
    assert sink.tokens == [2, 3, 4]
    assert EOS not in sink.tokens


def test_log_probabilities_come_with_the_tokens():
    """04 LGP-3: sorted, cut to what this request asked for."""
    options = SamplingOptions(temperature=0.0, logprobs=True, top_logprobs=3)
    sink = ask(loaded_toy(ToyTarget()), [0, 1], sampling=options)
    assert [entry.token for entry in sink.logprobs] == [2, 3, 4]
    for entry in sink.logprobs:
        assert entry.top[0] == (entry.token, entry.logprob)
        assert len(entry.top) == 3
        assert entry.top[1][1] >= entry.top[2][1]


def test_log_probabilities_may_be_asked_without_rivals():
    options = SamplingOptions(temperature=0.0, logprobs=True)
    sink = ask(loaded_toy(ToyTarget()), [0, 1], sampling=options)
    assert [entry.top for entry in sink.logprobs] == [()] * 3


class Peaks(logging.Handler):
    """The engine's log lines, and the place of the peak's among other events."""

    def __init__(self):
        super().__init__()
        self.lines, self._events = [], []

    def into(self, events):
        self._events = events

    def emit(self, record):
        self.lines.append(record.getMessage())
        if self.lines[-1].startswith("peak_memory="):
            self._events.append("peak")


@pytest.fixture
def peaks():
    engine, handler = logging.getLogger("forerun.engine"), Peaks()
    level = engine.level
    engine.addHandler(handler)
    engine.setLevel(logging.INFO)
    yield handler
    engine.removeHandler(handler)
    engine.setLevel(level)


def recording(look_ahead=0):
    """A loaded toy whose parts note what is acquired and released."""
    events = []

    class NotedSampler(Sampler):
        def add(self, slot, options, prior):
            events.append(f"add {list(prior)}")
            super().add(slot, options, prior)

        def remove(self, slot):
            events.append("remove")
            super().remove(slot)

    class NotedPrefix(PrefixCache):
        def begin(self, tokens, media=()):
            events.append("begin")
            return super().begin(tokens, media)

        def attach(self, stored, media):
            if events[-1] != "close":
                events.append("attach")
            super().attach(stored, media)

        def close(self, stored, media):
            events.append("close")
            super().close(stored, media)

        def recover(self, error):
            events.append("recover")
            super().recover(error)

    class NotedTarget(ToyTarget):
        def forward(self, batch, caches):
            events.append(f"forward {batch.starts[0]}+{batch.width}")
            assert batch.input_ids.dtype == torch.int64
            return super().forward(batch, caches)

    target = NotedTarget(endless)
    loaded = loaded_toy(target, look_ahead=look_ahead)
    sampler = NotedSampler(vocab_size=VOCABULARY, context_length=200, device=target.facts.device)
    prefix = NotedPrefix(loaded.caches)
    return dataclasses.replace(loaded, sampler=sampler, prefix=prefix), target, events


def test_what_a_request_acquires_in_order_it_releases_in_reverse():
    """REQ-1, REQ-2: session, prefill, sampler slot, decode; then session and slot."""
    loaded, _, events = recording()
    ask(loaded, [1, 2, 3], 2)
    assert events == [
        "begin",
        "forward 0+2",
        "attach",
        "add [1, 2, 3]",
        "forward 2+1",
        "forward 3+1",
        "close",
        "remove",
    ]


@pytest.mark.parametrize("look_ahead", [0, 1])
@pytest.mark.parametrize("cancel_at", range(7))
def test_everything_is_released_however_a_request_ends(look_ahead, cancel_at, peaks):
    """REQ-3; REQ-2: the peak of memory is logged last."""
    loaded, _, events = recording(look_ahead)
    peaks.into(events)
    ask(loaded, [1, 2, 3], 3, sink=ListSink(cancel_at=cancel_at))
    assert events[-3:] == ["close", "remove", "peak"]


@pytest.mark.parametrize("fails_at", [0, 2, 3])
def test_an_error_releases_everything(fails_at, peaks):
    """REQ-3; REQ-2: the peak of memory is logged last."""
    loaded, target, events = recording()
    peaks.into(events)
    target.fails_at = fails_at
    with pytest.raises(RuntimeError):
        ask(loaded, [1, 2, 3], 3)
    assert events[-3:] == ["recover", "remove", "peak"]
    (peak,) = [line for line in peaks.lines if line.startswith("peak_memory=")]
    assert int(peak.partition("=")[2]) > 2**20  # an interpreter with torch has more


def test_the_progress_of_a_prompt_is_logged(peaks):
    """PRE-4: processed of total, at info."""
    ask(loaded_toy(ToyTarget(endless), chunk=4), [1] * 10, 0)
    assert [line for line in peaks.lines if line.startswith("prefill")] == [
        f"prefill processed={processed} total=10 cached=0" for processed in (4, 8, 9)
    ]


@pytest.mark.parametrize("look_ahead", [0, 1])
def test_tokens_are_plain_integers_outside_the_device(look_ahead):
    """THR-5: int64 tensors on the device, Python ints on the host."""
    loaded, _, _ = recording(look_ahead)
    sampling = SamplingOptions(logprobs=True, top_logprobs=2, seed=1)
    sink = ask(loaded, [1, 2], 3, sampling=sampling)
    assert {type(token) for token in sink.tokens} == {int}
    for entry in sink.logprobs:
        assert {type(token) for token, _ in entry.top} == {int}
        assert type(entry.token) is int
        assert type(entry.logprob) is float
