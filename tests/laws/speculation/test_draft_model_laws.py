"""The law of a draft model's caches, whatever kinds they are of (DRM-6)."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.hybrid import CONTEXT, KINDS, SLACK, VOCABULARY, HybridModel, Kind, hybrid_model
from fixtures.hybrid_reference import assert_same
from forerun.contract.batch import Batch
from forerun.contract.drafter import DraftRequest
from forerun.contract.model import CacheOptions
from forerun.sampling.options import SamplingOptions
from forerun.sampling.sampler import Sampler
from forerun.speculation.drafters.draft_model import DraftModelDrafter

OPTIONS = CacheOptions(CONTEXT, slack=SLACK)
CHUNK = 12
TOKENS = st.integers(0, VOCABULARY - 1)
RUNS = st.lists(TOKENS, min_size=1, max_size=20)
ROUNDS = st.tuples(st.integers(1, 8), st.integers(0, 8))  # drafts asked for, and kept of them
STEPS = st.lists(st.one_of(RUNS, ROUNDS, st.just("settle")), max_size=10)
SAMPLING = {
    "greedy": SamplingOptions(temperature=0.0),
    "seeded": SamplingOptions(temperature=0.9, top_k=8, seed=5, presence_penalty=1.0),
}


class Driven:
    """A drafter's session and all that it was told is committed."""

    def __init__(self, kinds: tuple[Kind, ...], sampling: str, prompt: int) -> None:
        self.model: HybridModel = hybrid_model(kinds)
        self.caches = self.model.new_caches(OPTIONS)
        device = torch.device("cpu")
        sampler = Sampler(vocab_size=VOCABULARY, context_length=CONTEXT, device=device)
        sampler.add(0, SAMPLING[sampling], [])
        drafter = DraftModelDrafter(self.model, self.caches, sampler, chunk=CHUNK)
        self.session = drafter.open(DraftRequest((1,) * prompt, slot=0))
        self.text: list[int] = []

    def run(self, tokens: Sequence[int]) -> None:
        self.session.committed(tokens, None, len(self.text))
        self.text.extend(tokens)

    def round(self, most: int, keep: int) -> None:
        current = most * 7 % VOCABULARY
        proposal = self.session.propose(current, most)
        assert proposal is not None
        assert proposal.tokens.shape == (most,)
        self.run([current, *proposal.tokens.tolist()[:keep]])

    def assert_level(self) -> None:
        """All layers hold the text and nothing else."""
        fresh = self.model.new_caches(OPTIONS)
        if self.text:
            self.model.forward(Batch.of(self.text, 0, torch.device("cpu")), fresh)
        for ours, theirs in zip(self.caches, fresh, strict=True):
            if ours is not None and theirs is not None:
                assert ours.offset == len(self.text)
                if self.text:
                    assert_same(ours, theirs)


@pytest.mark.parametrize("kinds", [("full",), ("sliding",), ("recurrent",), KINDS], ids="+".join)
@settings(max_examples=60)
@given(STEPS, st.sampled_from(sorted(SAMPLING)), st.integers(1, 40), st.booleans())
def test_after_any_rounds_the_caches_are_those_of_the_committed_tokens_alone(
    kinds: tuple[Kind, ...],
    steps: list[list[int] | tuple[int, int] | str],
    sampling: str,
    prompt: int,
    broken_off: bool,
) -> None:
    """DRM-6, DRM-5: whatever was proposed, kept or refused, before and after a window has wrapped.

    `broken_off`: the last proposal's round never reports.
    """
    driven = Driven(kinds, sampling, prompt)
    for step in steps:
        if isinstance(step, list):
            driven.run(step)
        elif isinstance(step, tuple):
            driven.round(*step)
        else:
            driven.session.settle(1)
            driven.assert_level()
    if broken_off:
        driven.session.propose(3, 4)
    driven.session.close()
    driven.assert_level()
