"""Captures asked for ahead of the writes that reach them (spec 01 PND)."""

from collections.abc import Callable, Sequence

from forerun.contract.cache import Snapshot

Capture = Callable[[int, int], Snapshot | None]  # (where the capture before ended, where this does)


class Schedule:
    """The offsets of one schedule and what was captured at them.

    A capture starts where the one before it ended, however writes fall in between, so that
    neighbouring captures join into one range (PND-4).
    """

    def __init__(self) -> None:
        self.offsets: list[int] | None = None  # None: no schedule. Read by others, never written
        self._captured: dict[int, Snapshot | None] = {}
        self._base = 0

    def check(self, offsets: Sequence[int], now: int) -> None:
        """As `prepare` does before anything else: for kinds that copy a state first."""
        assert self.offsets is None, "the last schedule has not been taken"
        steps = [now - 1, *offsets]
        assert all(a < b for a, b in zip(steps, offsets, strict=False)), (now, list(offsets))

    def prepare(self, offsets: Sequence[int], now: int) -> None:
        self.check(offsets, now)
        self.offsets, self._captured, self._base = list(offsets), {}, now

    def due(self, start: int, end: int) -> list[int]:
        """The offsets in `[start, end]` that have not been captured yet."""
        return [
            offset
            for offset in self.offsets or ()
            if start <= offset <= end and offset not in self._captured
        ]

    def reach(self, start: int, end: int, capture: Capture) -> None:
        """Capture each offset in `[start, end]` that has not been captured yet (PND-3)."""
        if not self.offsets:
            return
        for offset in self.due(start, end):
            self._captured[offset] = capture(self._base, offset)
            self._base = offset

    def take(self) -> list[Snapshot | None]:
        assert self.offsets is not None, "nothing was prepared"
        taken = [self._captured.get(offset) for offset in self.offsets]
        self.offsets, self._captured = None, {}
        return taken

    def drop(self) -> None:
        for snapshot in self._captured.values():
            if snapshot is not None:
                snapshot.close()
        self.offsets, self._captured = None, {}
