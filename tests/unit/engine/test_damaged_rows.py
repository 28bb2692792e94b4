"""A target whose logits are numbers no more in the middle of an answer: 04 ORD-9, decoder law 1."""

import dataclasses
import math
import threading

import pytest
from torch.nn import functional

from fixtures.scripted_drafter import ScriptedDrafter, drafting_with
from fixtures.toy import VOCABULARY, ToyTarget, ask, continued, endless, loaded_toy, tokens_in
from forerun.base.errors import DamagedModelError
from forerun.contract.model import Best
from forerun.engine.embed import embed
from forerun.kernels.output_head import reference
from forerun.sampling.distribution import Distribution
from forerun.sampling.options import SamplingOptions
from forerun.sampling.refusals import NoAllowedTokenError

PROMPT = [1, 2, 3]
BAD = 15
PLAIN = SamplingOptions(temperature=0.0, repeat_last_n=0)
EVERY_KIND = [
    PLAIN,
    SamplingOptions(temperature=0.0, repeat_penalty=1.1, repeat_last_n=2),
    SamplingOptions(temperature=0.5, top_k=3, seed=3, repeat_last_n=0),
    SamplingOptions(temperature=0.5, top_k=3, repeat_last_n=0),
    SamplingOptions(temperature=0.5, top_k=0, repeat_last_n=0),
]


class DamagedTarget(ToyTarget):
    """Its hidden states overflow from one position on."""

    def __init__(self, at: int, value: float) -> None:
        super().__init__(endless)
        self._at, self._value = at, value

    def forward(self, batch, caches):
        forward = super().forward(batch, caches)
        first = max(0, self._at - batch.starts[0])
        forward.hidden[:, first:] = self._value
        return forward


class RankingDamagedTarget(DamagedTarget):
    def best(self, hidden, count):
        return Best(*reference.best(hidden, count))


def dense(drafts):
    """Certain of each draft, in rows that the tensors judge."""
    return Distribution(functional.one_hot(drafts, VOCABULARY).float())


def answer(target, sampling, depth, rows=None, look_ahead=0):
    """What was handed out, and the error."""
    sequence = continued(PROMPT, 40)
    loaded = loaded_toy(target, look_ahead=look_ahead)
    if depth:
        drafter = ScriptedDrafter(lambda known, most: sequence[len(known) : len(known) + most])
        drafter.rows = rows or drafter.rows
        loaded = drafting_with(loaded, drafter, depth=depth)
        sampling = dataclasses.replace(sampling, draft="lookup")
    sink = ask(loaded, PROMPT, 20, sampling=sampling)
    return sink.tokens, type(sink.error)


@pytest.mark.parametrize("kind", [DamagedTarget, RankingDamagedTarget])
@pytest.mark.parametrize("sampling", EVERY_KIND, ids=str)
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (math.nan, DamagedModelError),
        (math.inf, DamagedModelError),
        (-math.inf, NoAllowedTokenError),
    ],
)
@pytest.mark.parametrize("look_ahead", [0, 1])
@pytest.mark.parametrize(("depth", "rows"), [(0, None), (1, None), (3, dense), (4, None)])
def test_the_text_before_it_is_whole_and_the_model_is_named(
    kind, sampling, value, error, depth, rows, look_ahead
):
    """Wherever in a round it falls; drafts that the damaged row would judge are not handed out."""
    for at in range(len(PROMPT) - 1, len(PROMPT) + 9):
        want = continued(PROMPT, at + 1)[len(PROMPT) :]
        assert answer(kind(at, value), sampling, depth, rows, look_ahead) == (want, error)


class DamagedByOne(ToyTarget):
    """One token spoils all logits of the forward that it is in, and of those behind it."""

    def forward(self, batch, caches):
        forward = super().forward(batch, caches)
        if BAD in tokens_in(caches[0]):
            forward.hidden[:] = math.nan
        return forward


def test_nothing_is_kept_of_what_is_no_number_and_all_else_is():
    """A prompt that begins as a damaged one does would begin with rows that are none."""
    loaded = loaded_toy(DamagedByOne(endless), chunk=4)
    shared, fork, other = [1, 2, 3, 4, 1, 2], [1, 2, 9, 9, 8], [7, 8, 9, 7, 8]
    for prompt in (other, fork, shared):
        assert ask(loaded, prompt, 1, sampling=PLAIN).error is None
    damaged = ask(loaded, [*shared, 3, 2, 1, BAD, 4, 3, 2], 5, sampling=PLAIN)
    assert isinstance(damaged.error, DamagedModelError)
    stored = [node.end for node in loaded.prefix.nodes()]
    assert max(stored) <= max(len(shared), len(other)), "what it evaluated is stored"
    assert ask(loaded, [*shared, 3, 2, 1, 4], 1, sampling=PLAIN).error is None
    for sound in (other, fork):
        assert ask(loaded, [*sound, 1], 1, sampling=PLAIN).figures.cached_tokens == len(sound)


def test_a_vector_of_no_numbers_is_none():
    """Nor is a reply of the runner's that says NaN, which is no JSON."""
    loaded = loaded_toy(DamagedTarget(2, math.inf))
    with pytest.raises(DamagedModelError, match="hidden states hold nan"):
        embed(loaded, PROMPT, None, threading.Event())
    assert len(embed(loaded, PROMPT[:2], None, threading.Event())) == VOCABULARY
