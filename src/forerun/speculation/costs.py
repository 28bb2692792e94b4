"""What a round of each depth costs, learnt from its times (DEP-2)."""

from bisect import bisect_left

_SHARE = 0.3  # of the distance to a new sample that the average moves by
_LARGEST_STEP = 0.25  # that distance at most, in parts of the average: one stall moves it by 7.5 %


class Costs:
    """An average by depth in milliseconds. Between measured depths it is a straight line."""

    def __init__(self) -> None:
        self._depths: list[int] = []  # those with a sample, ascending
        self._averages: dict[int, float] = {}

    def add(self, depth: int, milliseconds: float) -> None:
        if depth < 0 or milliseconds <= 0:
            return
        average = self._averages.get(depth)
        if average is None:
            self._depths.insert(bisect_left(self._depths, depth), depth)
            self._averages[depth] = milliseconds
            return
        bound = _LARGEST_STEP * average
        step = min(max(milliseconds - average, -bound), bound)
        self._averages[depth] = average + _SHARE * step

    def __len__(self) -> int:
        return len(self._depths)

    def __contains__(self, depth: int) -> bool:
        return depth in self._averages

    def at(self, depth: int) -> float:
        """The average, or a value on the line between its measured neighbours; flat outside."""
        assert self._depths, "nothing has been measured"
        depth = min(max(depth, self._depths[0]), self._depths[-1])
        if depth in self._averages:
            return self._averages[depth]
        place = bisect_left(self._depths, depth)
        below, above = self._depths[place - 1 : place + 1]
        low, high = self._averages[below], self._averages[above]
        return low + (high - low) * (depth - below) / (above - below)

    def measured(self) -> dict[int, float]:
        return {depth: self._averages[depth] for depth in self._depths}
