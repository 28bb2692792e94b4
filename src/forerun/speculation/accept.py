"""Verifying a draft: which of its tokens the target stands by, and what follows (RND-6, RND-7).

Tensors in and out. On a device nothing branches on what is in them, so that nobody waits for it; a
CPU has them at hand, and draws what is needed alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.contract.drafter import DistributionRows
from forerun.sampling.distribution import Distribution
from forerun.sampling.host_row import NO_TOKEN
from forerun.sampling.noise import Purpose, row_uniform
from forerun.sampling.sampler import Sampler

_NO_NOISE = "these keys are of another kind of request"


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
    continuations: Tensor  # [D + 1] int64: at `accepted`, the token that follows


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

    The token that follows is NO_TOKEN where its row allows none.
    """
    depth = drafts.shape[0]
    assert len(target) == depth + 1, f"{len(target)} rows of the target for {depth} drafts"
    if target.ids is not None and target.ids.shape[-1] == 1:  # both couplings come to this (GEN-5)
        drawn = torch.where(target.probs > 0, target.ids, NO_TOKEN).squeeze(-1)
        return Verdict(_leading(drawn[:depth] == drafts), drawn)
    draft = Distribution(proposal.probs, proposal.ids)
    on_host = target.probs.device.type == "cpu"
    if seeded:
        return (_seeded_on_host if on_host else seeded_at_once)(target, drafts, keys)
    return (_unseeded_on_host if on_host else unseeded_at_once)(target, draft, drafts, keys)


def seeded_at_once(target: Distribution, drafts: Tensor, keys: Keys) -> Verdict:
    """Waits for nothing: all D + 1 tokens that may follow are drawn together."""
    assert keys.target is not None, _NO_NOISE
    drawn = target.draw(keys.target)
    return Verdict(_leading(drawn[: drafts.shape[0]] == drafts), drawn)


def unseeded_at_once(
    target: Distribution, draft: Distribution, drafts: Tensor, keys: Keys
) -> Verdict:
    assert keys.residual is not None, _NO_NOISE
    depth = drafts.shape[0]
    left = target.rows(slice(depth)).residual(draft)
    rows = Distribution(torch.cat([left.probs, target.probs[depth:]]), target.ids)
    accepted = _leading(standing(target, draft, drafts, keys))
    return Verdict(accepted, rows.draw(keys.residual))


def standing(target: Distribution, draft: Distribution, drafts: Tensor, keys: Keys) -> Tensor:
    """Whether each draft stands if those before it do, [D] bool.

    Leviathan et al. 2023, algorithm 1, https://arxiv.org/abs/2211.17192: of all couplings that keep
    the target's distribution, the one that accepts most.
    """
    assert keys.accept is not None, _NO_NOISE
    wanted = target.rows(slice(drafts.shape[0])).prob(drafts)
    return row_uniform(keys.accept) * draft.prob(drafts) < wanted


def _seeded_on_host(target: Distribution, drafts: Tensor, keys: Keys) -> Verdict:
    """A CPU draws a row in the time of many operations, so it draws no more than it hands out."""
    assert keys.target is not None, _NO_NOISE
    proposed: list[int] = drafts.tolist()
    drawn: list[int] = []
    while drawn == proposed[: len(drawn)]:  # ends behind the bonus, which nobody proposed
        row = slice(len(drawn), len(drawn) + 1)
        drawn.append(int(target.rows(row).draw(keys.target[row])))
    return _on_host(drawn, len(proposed))


def _unseeded_on_host(
    target: Distribution, draft: Distribution, drafts: Tensor, keys: Keys
) -> Verdict:
    assert keys.residual is not None, _NO_NOISE
    accepted = int(_leading(standing(target, draft, drafts, keys)))
    row = slice(accepted, accepted + 1)
    rows = target.rows(row)
    if accepted < drafts.shape[0]:
        rows = rows.residual(draft.rows(row))
    token = int(rows.draw(keys.residual[row]))
    return _on_host([NO_TOKEN] * accepted + [token], drafts.shape[0])


def _on_host(continuations: list[int], depth: int) -> Verdict:
    """Those that were drawn, the last of them the one that counts."""
    padded = continuations + [NO_TOKEN] * (depth + 1 - len(continuations))
    return Verdict(torch.tensor(len(continuations) - 1), torch.tensor(padded))


def _leading(stands: Tensor) -> Tensor:
    return stands.cumprod(0).sum()
