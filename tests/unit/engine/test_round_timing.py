"""Which rounds of a request are timed, and who learns of it (03 DEP-3, DEP-8, DEP-12, DEP-13)."""

import dataclasses
import itertools
import time
from types import SimpleNamespace

import pytest

from fixtures.scripted_drafter import ScriptedDrafter, oracle
from fixtures.toy import ListSink, ToyTarget, ask, continued, endless, loaded_toy
from forerun.engine import generate
from forerun.sampling.options import SamplingOptions
from forerun.speculation.bound import BoundDrafters
from forerun.speculation.depth import DepthController

AUTO = SamplingOptions(temperature=0.0)
PROMPT = [1, 2, 3, 4, 6, 7]


class Waiting(ListSink):
    """Its reader keeps it waiting for an hour at each token. A look at the clock takes 1 ms."""

    now = waited = 0.0

    @property
    def waited_s(self):
        return self.waited

    def perf_counter(self):
        self.now += 0.001
        return self.now

    def take(self, tokens, logprobs):
        self.now += 3600
        self.waited += 3600
        return super().take(tokens, logprobs)


class Timed(DepthController):
    def __init__(self):
        super().__init__()
        self.samples = []

    def cost(self, depth, milliseconds):
        self.samples.append((depth, milliseconds))
        super().cost(depth, milliseconds)


def test_a_round_is_timed_without_the_wait_for_its_reader(monkeypatch):
    """DEP-3, DEP-13: from one round's start to the next one's, for rounds that follow one of the
    same depth, so that a width's first forward is never timed."""
    loaded, sink = loaded_toy(ToyTarget(endless)), Waiting()
    times = SimpleNamespace(monotonic=time.monotonic, perf_counter=sink.perf_counter)
    monkeypatch.setattr(generate, "time", times)
    drafter = ScriptedDrafter(oracle(continued(PROMPT, 200)))
    controller = Timed()
    bound = BoundDrafters(lookup=drafter, controllers={"lookup": [controller]})
    ask(dataclasses.replace(loaded, drafters=bound), PROMPT, 60, sampling=AUTO, sink=sink)
    assert sink.figures.generated_tokens == 60
    assert {depth for depth, _ in controller.samples} >= {0, 1}
    assert all(0 < milliseconds < 10 for _, milliseconds in controller.samples)


def test_a_request_that_does_not_draft_teaches_the_controller_nothing():
    """DEP-8, GEN-3: it is not told, asked or timed; nor is the drafter, which owns no caches."""

    class Untouched(DepthController):
        def next(self):
            raise AssertionError("a parked session chose a depth")

    drafter = ScriptedDrafter(oracle(continued(PROMPT, 60)))
    bound = BoundDrafters(lookup=drafter, controllers={"lookup": [Untouched()]})
    loaded = dataclasses.replace(loaded_toy(ToyTarget(endless)), drafters=bound)
    assert ask(loaded, PROMPT, 20).reason == "length"
    assert (drafter.reported, drafter.closed) == ([], 0)


class Scheduled(Timed):
    """Two plain rounds, then drafts."""

    rounds = 0

    @property
    def scheduled(self):
        return 0 if self.rounds < 3 else 2

    def next(self):
        self.rounds += 1
        return self.scheduled


@pytest.mark.parametrize(("look_ahead", "samples"), [(0, 2), (1, 1)])
def test_the_round_before_a_resume_is_not_timed(look_ahead, samples):
    """DEP-3, RND-3: with a token in flight, what was handed out without a forward would count."""
    controller = Scheduled()
    drafter = ScriptedDrafter(oracle(continued(PROMPT, 60)))
    bound = BoundDrafters(lookup=drafter, controllers={"lookup": [controller]})
    loaded = dataclasses.replace(
        loaded_toy(ToyTarget(endless), look_ahead=look_ahead), drafters=bound
    )
    ask(loaded, PROMPT, 20, sampling=AUTO)
    assert [depth for depth, _ in controller.samples if not depth] == [0] * samples


def test_rounds_of_varying_length_are_timed_by_their_parts():
    """DEP-12: here no two neighbours that draft are equally deep."""
    right, lengths = oracle(continued(PROMPT, 90)), itertools.cycle([1, 2])
    controller = Scheduled()
    drafter = ScriptedDrafter(lambda known, _: right(known, next(lengths)))
    bound = BoundDrafters(lookup=drafter, controllers={"lookup": [controller]})
    loaded = dataclasses.replace(loaded_toy(ToyTarget(endless)), drafters=bound)
    ask(loaded, PROMPT, 40, sampling=AUTO)
    assert {depth for depth, _ in controller.samples} == {0, 1, 2}
