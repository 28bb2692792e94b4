"""Verifying a draft: which of its tokens the target stands by, and what follows (RND-6, RND-7).

Tensors in and out, and no branch on what is in them: nothing here waits for the device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.contract.drafter import DistributionRows
from forerun.sampling.distribution import Distribution
from forerun.sampling.host_row import NO_TOKEN
from forerun.sampling.noise import Purpose, row_uniform
from forerun.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Keys:
    """The noise of one round with D drafts (04 SED). None: this kind of request does not use it.

    A greedy request uses none, a seeded one `target`, any other one `accept` and `residual`.
    """

    target: Tensor | None = None  # [D + 1] int64, the target's own draws
    accept: Tensor | None = None  # [D]
    residual: Tensor | None = None  # [D + 1], the last for the bonus

    @classmethod
    def of(cls, sampler: Sampler, slot: int, before: int, drafts: int) -> "Keys":
        """Those that the slot's options ask for. `before`: where the current token is written."""
        options = sampler.options(slot)
        if options.greedy:
            return cls()
        positions = range(before + 1, before + drafts + 2)
        if options.seeded:
            return cls(target=sampler.keys(slot, positions, Purpose.TARGET))
        return cls(
            accept=sampler.keys(slot, positions[:-1], Purpose.ACCEPT),
            residual=sampler.keys(slot, positions, Purpose.RESIDUAL),
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of D drafts."""

    accepted: Tensor  # [] int64, length of the leading run that stands
    continuations: Tensor  # [D + 1] int64, the token to follow if exactly i drafts are kept


def verify(
    target: Distribution,
    proposal: DistributionRows,
    drafts: Tensor,
    keys: Keys,
    *,
    seeded: bool,
) -> Verdict:
    """
    target     D + 1 rows: row i is what the target may draw after i drafts
    proposal   D rows: what each draft was drawn from, in any layout
    drafts     [D] int64
    seeded     accept what the target draws itself with its own noise, so that the text does not
               depend on the drafts

    A continuation is NO_TOKEN where its row allows no token.
    """
    depth = drafts.shape[0]
    assert len(target) == depth + 1, f"{len(target)} rows of the target for {depth} drafts"
    if target.ids is not None and target.ids.shape[-1] == 1:  # both couplings come to this (GEN-5)
        drawn = torch.where(target.probs > 0, target.ids, NO_TOKEN).squeeze(-1)
        return Verdict(_leading(drawn[:depth] == drafts), drawn)
    if seeded:
        assert keys.target is not None, "a seeded round needs the noise of the target's draws"
        drawn = target.draw(keys.target)
        return Verdict(_leading(drawn[:depth] == drafts), drawn)
    stands, continuations = by_rejection(target, proposal, drafts, keys)
    return Verdict(_leading(stands), continuations)


def by_rejection(
    target: Distribution, proposal: DistributionRows, drafts: Tensor, keys: Keys
) -> tuple[Tensor, Tensor]:
    """Whether each draft stands if those before it do, [D] bool, and the D + 1 continuations.

    Leviathan et al. 2023, algorithm 1, https://arxiv.org/abs/2211.17192: of all couplings that keep
    the target's distribution, the one that accepts most.
    """
    assert keys.accept is not None, "an unseeded round needs the noise of acceptance"
    assert keys.residual is not None, "an unseeded round needs the noise of residual draws"
    depth = drafts.shape[0]
    draft = Distribution(proposal.probs, proposal.ids)
    wanted = target.rows(slice(depth))
    stands = row_uniform(keys.accept) * draft.prob(drafts) < wanted.prob(drafts)
    left = wanted.residual(draft)
    rows = Distribution(torch.cat([left.probs, target.probs[depth:]]), target.ids)
    return stands, rows.draw(keys.residual)


def _leading(stands: Tensor) -> Tensor:
    return stands.cumprod(0).sum()
