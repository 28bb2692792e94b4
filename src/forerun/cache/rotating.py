"""Keys and values of sliding-window attention: the last tokens only (spec 01 ROT)."""

from collections.abc import Sequence

from torch import Tensor

from forerun.cache.applier import WindowApplier
from forerun.cache.rows import Rows, RowShape
from forerun.cache.schedule import Schedule
from forerun.cache.snapshots import LazySnapshots, RowSnapshot, Span
from forerun.contract.cache import Snapshot, SnapshotPair
from forerun.contract.history import History, Write


class RotatingCache:
    """Rows in position order, moved to the front of the buffer when it is full.

    Column c holds position `_base + c`. Positions `[_floor, offset)` are this sequence's. Rows
    below the floor or above the offset were left behind by a restore or a rewind: no history
    reaches them, and only lazy snapshots still name them.

    Law: `_floor <= max(0, offset - window)`, so the cache holds all rows that its state is made
    of. In position order what a decode step sees is one contiguous view and needs no mask.
    """

    def __init__(self, shape: RowShape, window: int, slack: int = 256) -> None:
        """
        window  positions that a query sees, itself included
        slack   tokens below the highest offset that a live rewind always reaches
        """
        assert window > 0, window
        assert slack > 0, slack
        self._shape, self._window = shape, window
        self._slack = slack
        self._held = window + slack  # rows kept whenever the buffer is tidied (ROT-1)
        self._capacity = window + 2 * slack
        self._rows = shape.empty(0)
        self._lazy = LazySnapshots(self._part)
        self._schedule = Schedule()
        self._announced: int | None = None  # rows of the write under way
        self._staging: Rows | None = None  # where they go, if not into the buffer
        self._base = self._floor = self._offset = 0
        self._generation = 0

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def generation(self) -> int:
        return self._generation

    def nbytes(self) -> int:
        return (self._offset - self._floor) * self._shape.row_bytes

    def begin_write(self, tokens: int) -> Write:
        self._assert_no_write()
        self._reserve()
        self._schedule.reach(self._offset, self._offset, self._state)
        self._announced = tokens
        if self._offset - self._base + tokens > self._capacity:
            if tokens > self._slack:
                return self._begin_staged(tokens)
            self._compact(self._held)
        end = self._offset + tokens
        self._lazy.save_within(self._offset, end)
        oldest = self._oldest_visible()
        history = self._history(self._part(oldest, end), oldest)
        start = self._offset - self._base
        return Write(self._rows.keys, self._rows.values, start, history, window=self._window)

    def end_write(self, tokens: int) -> None:
        assert self._announced is not None, "no write has begun"
        assert 0 <= tokens <= self._announced, (tokens, self._announced)
        announced, staging = self._announced, self._staging
        self._announced = self._staging = None
        if not tokens:
            return
        start = self._offset
        if staging is None:
            self._offset += tokens
            self._schedule.reach(start, self._offset, self._state)
            return
        old = staging.count - announced
        self._commit(staging.part(old, old + tokens))
        self._schedule.reach(
            start,
            self._offset,
            lambda before, end: self._state_in(staging, start - old, before, end),
        )

    def update(self, keys: Tensor, values: Tensor) -> History:
        tokens = keys.shape[2]
        write = self.begin_write(tokens)
        write.store(keys, values)
        self.end_write(tokens)
        return write.history

    def view(self) -> History:
        self._assert_no_write()
        oldest = self._first_of(self._offset)
        return self._history(self._part(oldest, self._offset), oldest)

    def snapshot(self, start: int) -> RowSnapshot | None:
        self._assert_no_write()
        return self._state(start, self._offset) if start < self._offset else None

    def prepare_snapshots(self, offsets: Sequence[int]) -> None:
        self._schedule.prepare(offsets, self._offset)
        self._schedule.reach(self._offset, self._offset, self._state)

    def take_snapshots(self) -> list[Snapshot | None]:
        return self._schedule.take()

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        self._assert_no_write()
        if snapshot is None:
            if not 0 <= target <= self._offset or self._floor > self._first_of(target):
                return False
            self._offset = target
            return True
        assert isinstance(snapshot, RowSnapshot), "a snapshot goes back to the kind that took it"
        span = snapshot.span
        if not 0 <= target <= span.end or span.first > self._first_of(target):
            return False
        if not snapshot.lazy_in(self._lazy):
            self._place(snapshot)
        self._floor, self._offset = span.first, target
        return True

    def split(self, snapshot: Snapshot | None, at: int) -> SnapshotPair:  # noqa: ARG002
        return None, snapshot  # a state cannot be cut: all of it is needed at its end

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        if parent is not None:
            parent.close()
        return child

    def free(self) -> None:
        self._assert_no_write()
        self._schedule.drop()
        self._lazy.save_all()
        self._replace(self._shape.empty(0))
        self._base = self._floor = self._offset = 0

    def _first_of(self, offset: int) -> int:
        """Position of the oldest row that the state at `offset` is made of."""
        return max(0, offset - self._window)

    def _oldest_visible(self) -> int:
        """Position of the oldest row that the next token sees."""
        return max(0, self._offset - self._window + 1)

    def _part(self, low: int, high: int) -> Rows:
        return self._rows.part(low - self._base, high - self._base)

    def _history(self, rows: Rows, oldest: int) -> History:
        applier = WindowApplier(self._window, oldest, rows.count)
        return History(rows.keys, rows.values, rows.count, oldest, applier=applier)

    def _state(self, start: int, end: int) -> RowSnapshot | None:
        first = self._first_of(end)
        assert self._floor <= first, (self._floor, first)
        return self._lazy.issue(Span(start, first, end)) if end else None

    def _state_in(self, staging: Rows, oldest: int, start: int, end: int) -> RowSnapshot | None:
        """The state inside a staged chunk, whose column 0 holds position `oldest` (ROT-11)."""
        first = self._first_of(end)
        if self._floor <= first:
            return self._state(start, end)
        rows = staging.part(first - oldest, end - oldest).compact()
        return RowSnapshot(Span(start, first, end), lazy=None, rows=rows)

    def _begin_staged(self, tokens: int) -> Write:
        """Room of its own for a chunk that would push out rows which its queries see (ROT-7)."""
        oldest = self._oldest_visible()
        old = self._part(oldest, self._offset)
        staging = self._staging = self._shape.empty(old.count + tokens)
        staging.part(0, old.count).copy_from(old)
        history = self._history(staging, oldest)
        return Write(staging.keys, staging.values, old.count, history, window=self._window)

    def _commit(self, new: Rows) -> None:
        """Append what was staged, keeping the last rows that fit."""
        end = self._offset + new.count
        kept = min(new.count, self._held)
        if kept < new.count:
            self._lazy.save_all()
            self._base = self._floor = end - kept
        else:
            self._compact(self._held - kept)
            self._lazy.save_within(self._offset, end)
        self._part(end - kept, end).copy_from(new.part(new.count - kept, new.count))
        self._offset = end

    def _compact(self, keep: int) -> None:
        """Move the last `keep` rows to the front of the buffer."""
        first = max(self._floor, self._offset - keep)
        shift, count = first - self._base, self._offset - first
        if shift:
            self._lazy.save_outside(first, self._offset)
            # in blocks of the distance, so that no copy overlaps its source
            for low in range(0, count, shift):
                high = min(low + shift, count)
                self._rows.part(low, high).copy_from(self._rows.part(low + shift, high + shift))
            self._base = self._floor = first

    def _place(self, snapshot: RowSnapshot) -> None:
        """Copy another's rows to where they belong, or to the front if they do not fit there."""
        rows, span = snapshot.own(), snapshot.span
        self._reserve()
        if self._base <= span.first and span.end - self._base <= self._capacity:
            self._lazy.save_within(span.first, span.end)
        else:
            self._lazy.save_all()
            self._base = span.first
        self._part(span.first, span.end).copy_from(rows)

    def _reserve(self) -> None:
        if not self._rows.count:
            self._replace(self._shape.empty(self._capacity))

    def _replace(self, rows: Rows) -> None:
        self._rows = rows
        self._generation += 1

    def _assert_no_write(self) -> None:
        assert self._announced is None, "the write before this has not ended"
