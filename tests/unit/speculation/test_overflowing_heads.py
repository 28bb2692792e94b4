"""Drafts whose logits are none, as once they overflow: there is nothing to draft (03 MTP, DRM)."""

import itertools

import pytest
import torch
from torch import Tensor

from fixtures.toy import ToyTarget, tokens_in
from fixtures.toy_head import GREEDY, VOCABULARY, ChainRig, RankedToyHead, ToyHead, pairs
from forerun.contract.drafter import DraftRequest
from forerun.contract.model import CacheOptions
from forerun.sampling.options import SamplingOptions
from forerun.sampling.sampler import Sampler
from forerun.speculation.drafters.draft_model import DraftModelDrafter

SAMPLED = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, repeat_penalty=1.0)
FEW = SamplingOptions(temperature=1.0, top_k=3, top_p=0.9, repeat_penalty=1.0, seed=3)


EVERY_HEAD = pytest.mark.parametrize(
    ("cached", "kind", "options"),
    list(itertools.product((True, False), (ToyHead, RankedToyHead), (GREEDY, SAMPLED, FEW))),
)


def overflowing(kind, after, **kinds):
    """Its logits are numbers after tokens below `after`."""
    head = kind(lambda token: token + 1, columns=range(VOCABULARY - 1), **kinds)
    head._logits[after:] = torch.nan
    return head


@EVERY_HEAD
def test_a_chain_ends_before_the_first_token_that_is_none(cached, kind, options):
    rig = ChainRig(overflowing(kind, 4, cached=cached), options)
    rig.commit([9, 8], 0)
    assert rig.propose(1) == [2, 3, 4]
    assert rig.propose(1, 3) == [2, 3, 4]
    proposal = rig.session.propose(1, 4)
    assert len(proposal.rows) == len(proposal.host_tokens) == 3
    rig.session.close()


@EVERY_HEAD
def test_nothing_is_proposed_where_the_first_is_none(cached, kind, options):
    rig = ChainRig(overflowing(kind, 0, cached=cached), options)
    rig.commit([9, 8], 0)
    assert rig.propose(1) is None
    rig.commit([1, 2], 2)
    assert rig.propose(3) is None
    rig.session.close()
    assert not cached or rig.pairs == pairs([8, 1, 2, 3])


class OverflowingDraft(ToyTarget):
    """3 follows 2, and nothing follows that."""

    def unembed(self, hidden: Tensor) -> Tensor:
        return torch.where(hidden[..., 4:5] > 0, torch.nan, hidden)


@pytest.mark.parametrize("first", [2, 3])
def test_a_draft_model_knows_how_much_of_a_broken_chain_its_caches_hold(first):
    """DRM-5: what another drafter proposed instead comes behind it."""
    draft = OverflowingDraft(lambda tokens: tokens[-1] + 1)
    caches = draft.new_caches(CacheOptions(100))
    sampler = Sampler(vocab_size=VOCABULARY, context_length=100, device=draft.facts.device)
    sampler.add(0, SAMPLED, [first])
    session = DraftModelDrafter(draft, caches, sampler, chunk=4).open(
        DraftRequest((first,), slot=0)
    )
    proposal = session.propose(first, 5)
    assert (None if proposal is None else proposal.host_tokens) == ((3,) if first == 2 else None)
    text = [first, 3, 6, 6, 6, 6]
    session.committed(text, None, 0)
    session.close()
    assert [tokens_in(cache) for cache in caches if cache is not None] == [text, text]
