"""Keys and values of full attention: every past token stays addressable (spec 01 KV)."""

import logging
from collections.abc import Sequence
from functools import cache

from torch import Tensor

from forerun.cache.rows import Rows, RowShape
from forerun.cache.schedule import Schedule
from forerun.cache.snapshots import LazySnapshots, RowSnapshot, Span
from forerun.contract.cache import Snapshot, SnapshotPair
from forerun.contract.history import History, Write

_log = logging.getLogger(__name__)


class KVCache:
    """Rewinds to any earlier offset without a snapshot, by forgetting the tail.

    On a CPU the whole context is reserved at the first write and left uninitialised: memory
    becomes resident as tokens are written, and rows never move. Elsewhere, and where the system
    refuses, the buffer grows through capacity classes (KV-1).
    """

    def __init__(
        self,
        shape: RowShape,
        context: int,
        *,
        reserve: bool | None = None,
        smallest_class: int = 4096,
    ) -> None:
        """
        context         tokens that the sequence may hold
        reserve         take the whole context at once; None: on a CPU
        smallest_class  first capacity of a buffer that grows, a power of two
        """
        self._shape, self._context = shape, context
        self._reserve = shape.device.type == "cpu" if reserve is None else reserve
        self._smallest_class = smallest_class
        self._rows = shape.empty(0)
        self._lazy = LazySnapshots(self._view_of)
        self._schedule = Schedule()
        self._announced: int | None = None  # rows of the write under way
        self._offset = 0
        self._generation = 0

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def generation(self) -> int:
        return self._generation

    def nbytes(self) -> int:
        return self._offset * self._shape.row_bytes

    def begin_write(self, tokens: int) -> Write:
        self._assert_no_write()
        end = self._offset + tokens
        assert end <= self._context, (self._offset, tokens, self._context)
        self._schedule.reach(self._offset, self._offset, self._range)
        self._lazy.save_within(self._offset, end)
        if end > self._rows.count:
            self._grow(end)
        self._announced = tokens
        return Write(self._rows.keys, self._rows.values, self._offset, self._history(end))

    def end_write(self, tokens: int) -> None:
        assert self._announced is not None, "no write has begun"
        assert 0 <= tokens <= self._announced, (tokens, self._announced)
        self._announced = None
        if tokens:
            start, self._offset = self._offset, self._offset + tokens
            self._schedule.reach(start, self._offset, self._range)

    def update(self, keys: Tensor, values: Tensor) -> History:
        tokens = keys.shape[2]
        write = self.begin_write(tokens)
        write.store(keys, values)
        self.end_write(tokens)
        return write.history

    def view(self) -> History:
        self._assert_no_write()
        return self._history(self._offset)

    def snapshot(self, start: int) -> RowSnapshot | None:
        self._assert_no_write()
        return self._range(start, self._offset)

    def prepare_snapshots(self, offsets: Sequence[int]) -> None:
        self._schedule.prepare(offsets, self._offset)

    def take_snapshots(self) -> list[Snapshot | None]:
        return self._schedule.take()

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        self._assert_no_write()
        if snapshot is None:
            if not 0 <= target <= self._offset:
                return False
            self._offset = target
            return True
        held = _rows_of(snapshot)
        if not 0 <= target <= held.end or self._offset < held.start:
            return False
        if not held.lazy_in(self._lazy):
            self._place(held, target)
        self._offset = target
        return True

    def split(self, snapshot: Snapshot | None, at: int) -> SnapshotPair:
        if snapshot is None:
            return None, None
        held = _rows_of(snapshot)
        if at <= held.start:
            return None, held
        if at >= held.end:
            return held, None
        if held.lazy_in(self._lazy):
            pair = self._range(held.start, at), self._range(at, held.end)
        else:
            rows, middle = held.own(), at - held.start
            pair = (
                _owned(held.start, at, rows.part(0, middle).compact()),
                _owned(at, held.end, rows.part(middle, rows.count).compact()),
            )
        held.close()
        return pair

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        if parent is None or child is None:
            for lone in (parent, child):
                if lone is not None:
                    lone.close()
            return None
        before, after = _rows_of(parent), _rows_of(child)
        assert before.end == after.start, (before.span, after.span)
        merged: RowSnapshot | None
        if before.lazy_in(self._lazy) and after.lazy_in(self._lazy):
            merged = self._range(before.start, after.end)
        else:
            rows = before.look().followed_by(after.look())
            merged = _owned(before.start, after.end, rows)
        before.close()
        after.close()
        return merged

    def free(self) -> None:
        self._assert_no_write()
        self._schedule.drop()
        self._lazy.save_all()
        self._replace(self._shape.empty(0))
        self._offset = 0

    def _history(self, live: int) -> History:
        return History(self._rows.keys[:, :, :live], self._rows.values[:, :, :live], live)

    def _view_of(self, low: int, high: int) -> Rows:
        return self._rows.part(low, high)

    def _range(self, start: int, end: int) -> RowSnapshot | None:
        return self._lazy.issue(Span(start, start, end)) if start < end else None

    def _place(self, snapshot: RowSnapshot, target: int) -> None:
        """Copy the rows that `target` tokens need of another's snapshot to where they belong."""
        rows, start = snapshot.own(), snapshot.start
        if start >= target:
            return
        assert target <= self._context, (target, self._context)
        self._lazy.save_within(start, target)
        self._offset = start
        if target > self._rows.count:
            self._grow(target)
        self._rows.part(start, target).copy_from(rows.part(0, target - start))

    def _grow(self, needed: int) -> None:
        """A buffer of at least `needed` rows, holding the live ones.

        What snapshots name is among them: the rows beyond, all in the way of the write that
        needs more room than there was, have been copied out for it.
        """
        grown = self._allocated(needed)
        grown.part(0, self._offset).copy_from(self._rows.part(0, self._offset))
        self._replace(grown)

    def _allocated(self, needed: int) -> Rows:
        if self._reserve:
            try:
                return self._shape.empty(self._context)
            except RuntimeError as refusal:  # what torch raises when the system has no more
                _log_refusal(self._context, str(refusal))
        capacity = max(self._smallest_class, 1 << (needed - 1).bit_length())
        return self._shape.empty(min(capacity, self._context))

    def _replace(self, rows: Rows) -> None:
        self._rows = rows
        self._generation += 1

    def _assert_no_write(self) -> None:
        assert self._announced is None, "the write before this has not ended"


@cache  # sibling layers are refused alike
def _log_refusal(context: int, reason: str) -> None:
    _log.info("cannot reserve %d tokens at once, caches grow instead: %s", context, reason)


def _owned(start: int, end: int, rows: Rows) -> RowSnapshot:
    return RowSnapshot(Span(start, start, end), lazy=None, rows=rows)


def _rows_of(snapshot: Snapshot) -> RowSnapshot:
    assert isinstance(snapshot, RowSnapshot), "a snapshot goes back to the kind that took it"
    return snapshot
