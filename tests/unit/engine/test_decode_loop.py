"""Where generation stops: 05 DEC-1 to DEC-4, with runs of several tokens; cases A13, A15."""

import pytest

from fixtures.toy import EOS, ListSink
from forerun.base.errors import CancelledError
from forerun.contract.decoder import Run, TokenLogprob
from forerun.engine.decode import decode
from forerun.engine.job import Job
from forerun.sampling.options import SamplingOptions


class ScriptedDecoder:
    """Hands out given runs, as a speculative decoder does, and keeps the last token in flight."""

    def __init__(self, *runs, in_flight=()):
        self.asked = []
        self._runs = list(runs)
        self._in_flight = in_flight

    def next(self, remaining):
        self.asked.append(remaining)
        tokens = tuple(self._runs.pop(0))
        entries = tuple(TokenLogprob(token, -1.0) for token in tokens)
        return Run(tokens, entries, drafted=len(tokens), accepted=max(len(tokens) - 1, 0))

    def drain(self):
        return self._in_flight

    def close(self):
        pass


def run(decoder, budget, sink=None):
    sink, outputs = sink or ListSink(), []
    job = Job((1,), frozenset({EOS}), SamplingOptions(), budget, sink, sink.cancelled)
    return decode(decoder, job, outputs), sink, outputs


def test_the_text_ends_at_a_stop_token_inside_a_run():
    """Case A13, DEC-3: nothing after it is streamed or counted; all of it is recorded (DEC-2)."""
    ending, sink, outputs = run(ScriptedDecoder([10, 11], [12, EOS, 13, 14]), 20)
    assert (ending.reason, ending.generated) == ("stop", 3)
    assert sink.tokens == [10, 11, 12]
    assert outputs == [10, 11, 12, EOS, 13, 14]


def test_a_stop_token_alone_hands_nothing_out():
    ending, sink, _ = run(ScriptedDecoder([EOS]), 5)
    assert (ending.reason, ending.generated, sink.calls) == ("stop", 0, [])


@pytest.mark.parametrize("budget", range(10))
def test_a_run_is_cut_at_the_budget(budget):
    """Case A15: exactly `budget` tokens and entries, reason length; 0 ends at once."""
    decoder = ScriptedDecoder([10, 11, 12], [13, 14, 10, 11], [12, 13, 14])
    ending, sink, _ = run(decoder, budget)
    assert (ending.reason, ending.generated) == ("length", budget)
    assert sink.tokens == [10, 11, 12, 13, 14, 10, 11, 12, 13, 14][:budget]
    assert [entry.token for entry in sink.logprobs] == sink.tokens
    assert decoder.asked == [budget, budget - 3, budget - 7][: len(decoder.asked)]


@pytest.mark.parametrize(("budget", "reason"), [(2, "length"), (3, "stop")])
def test_a_stop_token_counts_only_within_the_budget(budget, reason):
    """Case A15: EOS before the cap wins; one that plain decoding would not have drawn does not."""
    ending, sink, _ = run(ScriptedDecoder([10, 11, EOS, 12]), budget)
    assert (ending.reason, sink.tokens) == (reason, [10, 11])


def test_a_stop_string_ends_the_text_at_the_token_that_completes_it():
    """05 STP-2: tokens beyond it are recorded, not counted."""
    decoder = ScriptedDecoder([10, 11, 12], [13])
    ending, sink, outputs = run(decoder, 20, ListSink(stop_at=2))
    assert (ending.reason, ending.generated) == ("stop", 2)
    assert sink.tokens == [10, 11]
    assert outputs == [10, 11, 12]


def test_an_empty_run_is_the_end_of_the_text():
    """04 ORD-9: a grammar that allows nothing more is satisfied."""
    ending, _, outputs = run(ScriptedDecoder([10], []), 20)
    assert (ending.reason, ending.generated, outputs) == ("stop", 1, [10])


def test_what_is_in_flight_is_recorded_on_every_exit():
    """DEC-4."""
    _, _, outputs = run(ScriptedDecoder([EOS], in_flight=(9,)), 20)
    assert outputs == [EOS, 9]
    sink = ListSink(cancel_at=0)
    outputs = []
    job = Job((1,), frozenset({EOS}), SamplingOptions(), 20, sink, sink.cancelled)
    with pytest.raises(CancelledError):
        decode(ScriptedDecoder([10, 11], in_flight=(9,)), job, outputs)
    assert outputs == [10, 11, 9]  # DEC-2: recorded before any of it was handed out


def test_a_cancelled_request_asks_for_no_further_round():
    """DEC-1, DEC-10."""
    decoder = ScriptedDecoder([10])
    sink = ListSink()
    sink.cancelled.set()
    with pytest.raises(CancelledError):
        run(decoder, 20, sink)
    assert decoder.asked == []


def test_drafts_are_counted():
    ending, _, _ = run(ScriptedDecoder([10, 11, 12], [13, EOS]), 20)
    assert (ending.drafted, ending.accepted) == (5, 3)
