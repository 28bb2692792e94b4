"""Where the drafts of a request come from, and which drafter proposes in a round (DRF-8)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forerun.contract.drafter import DraftSession
from forerun.speculation.contest import Contest
from forerun.speculation.depth import DepthController


@dataclass(frozen=True, slots=True)
class Source:
    """A drafter that a request uses."""

    name: str
    session: DraftSession
    depths: Sequence[DepthController]  # by grade of what it proposes


@dataclass(frozen=True, slots=True)
class Choice:
    """Who proposes in a round, and what says how much."""

    source: Source
    depth: DepthController


class Sources:
    """One drafter, or two that take turns: each proposes where it is expected to be faster."""

    def __init__(self, sources: Sequence[Source], contests: Sequence[Contest] = ()) -> None:
        """`contests`: of two drafters, by grade of what the second one would propose."""
        assert 0 < len(sources) <= 2, f"{len(sources)} drafters"
        self._sources, self._contests = sources, contests

    def __iter__(self) -> Iterator[Source]:
        return iter(self._sources)

    @property
    def wanted(self) -> bool:
        """Whether any of them would draft in the next round, if it knows how to go on."""
        return any(depth.scheduled for source in self._sources for depth in source.depths)

    def choose(self, current: int) -> Choice | None:
        """None: no drafter knows how to go on behind `current`."""
        graded = [(source, source.session.grade(current)) for source in self._sources]
        able = [(source, grade) for source, grade in graded if grade is not None]
        choices = [Choice(source, source.depths[grade]) for source, grade in able]
        if len(choices) < 2:
            return choices[0] if choices else None
        first, second = choices
        _, grade = able[1]
        return choices[self._contests[grade].second(first.depth.speed, second.depth.speed)]

    def cost(self, source: str | None, depth: int, milliseconds: float) -> None:
        """What a round took; one without drafts says it of every drafter."""
        for each in self._sources:
            if depth == 0 or each.name == source:
                each.depths[0].cost(depth, milliseconds)

    def unasked(self) -> None:
        """A round is over in which nobody could be asked: it counts for all."""
        for source in self._sources:
            for depth in source.depths:
                depth.next()
