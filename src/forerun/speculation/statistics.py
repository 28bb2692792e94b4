"""What drafting did for one request (STA)."""

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise

from forerun.contract.sink import Drafting

_SPANS = 8


class Statistics:
    """Rounds are recorded as they end (STA-1); a long request costs one byte a round."""

    def __init__(self) -> None:
        self._depths = array("B")
        self._accepted = 0
        self._by_position: list[tuple[int, int]] = []  # (accepted, observed)
        self._drafters: set[str] = set()  # that proposed something

    def round(self, depth: int, accepted: int, observed: int, drafter: str | None = None) -> None:
        """A round of `depth` drafts; its first `observed` are judged, `accepted` of them taken."""
        assert 0 <= accepted <= observed <= depth, (accepted, observed, depth)
        self._depths.append(depth)
        if drafter is not None:
            self._drafters.add(drafter)
        self._accepted += accepted
        for index in range(min(observed, accepted + 1)):
            if index == len(self._by_position):
                self._by_position.append((0, 0))
            taken, seen = self._by_position[index]
            self._by_position[index] = (taken + (index < accepted), seen + 1)

    def drafting(self, drafters: Sequence[str]) -> Drafting:
        """`drafters`: those that could propose, of which those that did are named, else all."""
        used = [name for name in drafters if name in self._drafters] or drafters
        return Drafting(
            drafter="+".join(used),
            rounds=len(self._depths),
            drafted=sum(self._depths),
            accepted=self._accepted,
            by_position=tuple(self._by_position),
            depths=tuple((sum(span) / len(span), max(span)) for span in self._spans()),
        )

    def line(self) -> str:
        """STA-2's info line."""
        rounds, drafted = len(self._depths), sum(self._depths)
        spans = " ".join(f"{sum(span) / len(span):.1f}/{max(span)}" for span in self._spans())
        return (
            f"drafting: {rounds} rounds, {drafted} drafted, {self._accepted} accepted "
            f"({self._accepted / max(drafted, 1):.2f}), a round {drafted / max(rounds, 1):.2f} "
            f"drafted (most {max(self._depths, default=0)}) and "
            f"{self._accepted / max(rounds, 1):.2f} accepted, depth mean/most [{spans}]"
        )

    def _spans(self) -> Iterator["array[int]"]:
        """The depths in up to eight spans that differ by at most one round."""
        rounds = len(self._depths)
        count = min(_SPANS, rounds)
        bounds = [rounds * place // count for place in range(count + 1)] if count else [0]
        for low, high in pairwise(bounds):
            yield self._depths[low:high]
