"""`accept.verify` in plain Python, for a CPU and rows of few candidates.

The meaning is that of `accept`. A row is shaped when it is reached: behind a refusal none is, and
tensor operations, of which a round would take fifty, cost as much as a layer of a small model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from forerun.contract.drafter import Proposal
from forerun.contract.model import Best
from forerun.sampling import host_row
from forerun.sampling.distribution import NO_MASS
from forerun.sampling.host_row import MOST_COLUMNS
from forerun.sampling.noise import Purpose
from forerun.sampling.options import SamplingOptions
from forerun.sampling.refusals import largest
from forerun.sampling.sampler import Sampler

Row = tuple[list[float], list[int]]  # probabilities, and the tokens that they are of
Noise = Callable[[int, Purpose], int]  # the key of a draw at the i-th place of the round


@dataclass(frozen=True, slots=True)
class HostRows:
    """The target's rows of a round, from their largest logits."""

    values: list[list[float]]
    ids: list[list[int]]
    windows: Sequence[Mapping[int, int]]  # what penalties look back on, row by row
    options: SamplingOptions

    @classmethod
    def of(cls, sampler: Sampler, slot: int, best: Best, proposal: Proposal) -> "HostRows":
        """`best` holds `Sampler.deciding` of each row, to which the proposal's drafts lead."""
        rows, held = best.ids.shape
        windows = sampler.windows(slot, known_drafts(proposal), rows, held)
        return cls(best.values.tolist(), best.ids.tolist(), windows, sampler.options(slot))

    def row(self, place: int) -> Row:
        window = self.windows[place]
        return host_row.probabilities(self.values[place], self.ids[place], window, self.options)

    def largest(self, rows: int) -> list[float]:
        """The largest logit of each of the first rows, NaN where some are no numbers."""
        return [largest(*row) for row in zip(self.values[:rows], self.ids[:rows], strict=True)]


def served(proposal: Proposal) -> bool:
    """Whether the host knows its drafts, and few candidates for each."""
    ids = proposal.rows.ids
    return proposal.host_tokens is not None and ids is not None and ids.shape[-1] <= MOST_COLUMNS


def known_drafts(proposal: Proposal) -> Sequence[int]:
    assert proposal.host_tokens is not None, "the host does not know these drafts"
    return proposal.host_tokens


def verify_on_host(target: HostRows, proposal: Proposal, noise: Noise) -> tuple[int, int]:
    """How many of the leading drafts stand, and the token that follows them.

    NO_TOKEN where the row that it is drawn from allows none.
    """
    drafts = known_drafts(proposal)
    if target.options.greedy or target.options.seeded:
        return _coupled(target, drafts, noise)
    return _by_rejection(target, proposal, drafts, noise)


def _coupled(target: HostRows, drafts: Sequence[int], noise: Noise) -> tuple[int, int]:
    """What the target draws itself stands."""
    for place, draft in enumerate(drafts):
        drawn = host_row.draw(*target.row(place), noise(place, Purpose.TARGET))
        if drawn != draft:
            return place, drawn
    bonus = len(drafts)
    return bonus, host_row.draw(*target.row(bonus), noise(bonus, Purpose.TARGET))


def _by_rejection(
    target: HostRows, proposal: Proposal, drafts: Sequence[int], noise: Noise
) -> tuple[int, int]:
    assert proposal.rows.ids is not None, "the draft's rows are dense"
    rows = zip(drafts, proposal.rows.probs.tolist(), proposal.rows.ids.tolist(), strict=True)
    for place, (draft, draft_probs, draft_ids) in enumerate(rows):
        probs, ids = target.row(place)
        proposed = dict(zip(draft_ids, draft_probs, strict=True))
        wanted = probs[ids.index(draft)] if draft in ids else 0.0
        chance = host_row.uniform(noise(place, Purpose.ACCEPT))
        if chance * proposed.get(draft, 0.0) >= wanted:
            return place, host_row.draw(
                _residual(probs, ids, proposed), ids, noise(place, Purpose.RESIDUAL)
            )
    bonus = len(drafts)
    return bonus, host_row.draw(*target.row(bonus), noise(bonus, Purpose.RESIDUAL))


def _residual(probs: list[float], ids: list[int], proposed: dict[int, float]) -> list[float]:
    """Not normalised: a draw needs only ratios."""
    both = zip(probs, ids, strict=True)
    left = [max(prob - proposed.get(token, 0.0), 0.0) for prob, token in both]
    return left if sum(left) > NO_MASS else probs
