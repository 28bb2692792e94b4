"""Warm is cold over hybrid layers, whatever came before (user-reported faults B05, B07, A19, A21).

After each request the answer, the offsets and all that the layers hold, the drafter's too, are
compared with a run of the bare model: fp32, 5e-5 of each tensor's scale. Token ids are compared
where no two logits are as near as rounding (06 WID-6).
"""

import functools
from dataclasses import dataclass, field

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fixtures.hybrid import KINDS, WINDOW, HybridModel, hybrid_model, loaded_hybrid
from fixtures.hybrid_reference import assert_holds, continued
from fixtures.toy import GREEDY, ListSink
from forerun.contract.model import Forward
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.prefix.captures import CaptureRule
from forerun.speculation.drafters.chain import ChainDrafter

EOS = frozenset(range(4, 9))
BROKE = "a layer broke"
NEAR = 1e-4  # of two logits: the next token depends on the order of additions

LAYOUTS = st.sampled_from(
    [KINDS, ("recurrent", "full", "recurrent", "full"), ("sliding", "full"), ("full", "stateless")]
)
SHARED = [1, 4, WINDOW - 1, WINDOW, WINDOW + 1, 1000]  # tokens of an earlier sequence (B07)


@dataclass(frozen=True)
class Step:
    """A request that goes on from an earlier one's text, or from none."""

    base: int | None
    shared: int
    tail: tuple[int, ...]
    budget: int
    cancel_at: int | None = None


STEPS = st.builds(
    Step,
    base=st.none() | st.integers(0, 3),
    shared=st.sampled_from(SHARED) | st.integers(1, 40),
    tail=st.lists(st.integers(0, 3), min_size=1, max_size=14).map(tuple),
    budget=st.integers(0, 6),
    cancel_at=st.none() | st.integers(0, 12),
)
ENGINES = st.fixed_dictionaries(
    {
        "look_ahead_keys": st.sampled_from([0, 1]),
        "look_ahead": st.sampled_from([0, 1]),
        "chunk": st.sampled_from([1, 3, 7, 16, 50]),
        "budget_bytes": st.sampled_from([0, 6000, 30000, 2**30]),
        "captures": st.builds(CaptureRule, st.sampled_from([4, 8, 8192])),
        "flush_at": st.sampled_from([1, 5, 256]),
    }
)

FOLLOWED = ENGINES.map(lambda options: options | {"look_ahead_keys": 1, "flush_at": 256})


class Replayed(HybridModel):
    """As under a captured graph, the next forward writes over the outputs of the one before."""

    last: Forward | None = None

    def forward(self, batch, caches):
        if self.last is not None and caches is not None:
            self.last.hidden.fill_(float("nan"))
        forward = super().forward(batch, caches)
        self.last = forward if caches is not None else self.last
        return forward


class Breaking(HybridModel):
    """Breaks off in the midst of its layers, in the `breaks_in`-th forward from now; 0: never."""

    breaks_in = 0
    error: Exception

    def forward(self, batch, caches):
        self.breaks_in -= 1
        if self.breaks_in:
            return super().forward(batch, caches)
        whole, self._layers = self._layers, [*self._layers[:2], self._broken, *self._layers[3:]]
        try:
            return super().forward(batch, caches)
        finally:
            self._layers = whole

    def _broken(self, *_):
        raise self.error


@functools.cache
def replayed(kinds):
    return Replayed(kinds, seed=0)


def ask(loaded, step, prompt):
    sink = ListSink(cancel_at=step.cancel_at)
    try:
        generate(loaded, Job(tuple(prompt), EOS, GREEDY, step.budget, sink, sink.cancelled))
    except RuntimeError as error:
        assert BROKE in str(error)
        assert sink.error.status in (500, 503)
    return sink


def counted(prompt, tokens, budget):
    """What of a continuation is handed out."""
    answer = tokens[len(prompt) :][:budget]
    end = next((place for place, token in enumerate(answer) if token in EOS), budget)
    return answer[:end]


@dataclass
class Conversations:
    """A warm engine, and the texts that have gone through it."""

    loaded: object
    model: HybridModel
    texts: list[list[int]] = field(default_factory=list)

    def run(self, step):
        prompt = list(step.tail)
        if step.base is not None and self.texts:
            prompt = [*self.texts[step.base % len(self.texts)][: step.shared], *prompt]
        prompt = prompt[:120]
        sequence, gap = continued(self.model, prompt, step.budget + 2)
        assume(gap > NEAR)
        expected = counted(prompt, sequence, step.budget)
        sink = ask(self.loaded, step, prompt)
        assert sink.tokens == expected[: len(sink.tokens)]
        if sink.error is None:
            assert sink.tokens == expected
        elif isinstance(self.loaded.model, Breaking):
            assert sink.error.status in (499, 500, 503)
        else:
            assert sink.error.status == 499
        assert_holds(self.loaded, self.model, sequence)
        self.texts.append([*prompt, *sink.tokens])
        return sink


@settings(max_examples=60)
@given(kinds=LAYOUTS, options=ENGINES, steps=st.lists(STEPS, min_size=2, max_size=6))
@torch.inference_mode()
def test_a_warm_answer_is_a_cold_one_whatever_came_before(kinds, options, steps):
    """B07, A19, A21, 02 KEY-5, 02 KEY-7, 03 DRF-2, DRF-6: ids, offsets and values of every layer,
    after requests that branch off anywhere, end anyhow, and after evictions at any budget."""
    model = hybrid_model(kinds)
    conversations = Conversations(loaded_hybrid(model, **options), model)
    for step in steps:
        conversations.run(step)


@settings(max_examples=20)
@given(options=FOLLOWED, steps=st.lists(STEPS, min_size=2, max_size=4))
@torch.inference_mode()
def test_no_row_is_kept_past_the_next_forward(options, steps):
    """03 DRF-7: outputs that a replay overwrites have been cloned by then, or are not needed."""
    conversations = Conversations(loaded_hybrid(replayed(KINDS), **options), hybrid_model(KINDS))
    for step in steps:
        conversations.run(step)


@settings(max_examples=40)
@given(
    options=ENGINES,
    steps=st.lists(st.tuples(STEPS, st.integers(0, 12)), min_size=2, max_size=5),
    error=st.sampled_from([RuntimeError, torch.OutOfMemoryError]),
    which=st.sampled_from(["target", "draft"]),
)
@torch.inference_mode()
def test_after_an_error_anywhere_the_layers_hold_one_known_text(options, steps, error, which):
    """05 REQ-3: a forward that breaks off leaves layers at different offsets (contract/model law
    2); whatever was being written, the next answer is a cold one."""
    model = Breaking(KINDS, seed=0)
    model.error = error(BROKE)
    conversations = Conversations(loaded_hybrid(model, **options), hybrid_model(KINDS))
    for step, breaks_in in steps:
        model.breaks_in = breaks_in if which == "target" else 0
        drafter = conversations.loaded.drafters.owner
        if which == "draft" and drafter:
            drafter.write = failing(drafter, breaks_in, model.error)
        conversations.run(step)


def failing(drafter, breaks_in, error):
    """The drafter's way to its head, which breaks after the forward, so that it has written."""
    calls = 0

    def write(*pairs):
        nonlocal calls
        calls += 1
        forward = ChainDrafter.write(drafter, *pairs)
        if calls == breaks_in:
            raise error
        return forward

    return write
