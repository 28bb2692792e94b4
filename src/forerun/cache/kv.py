"""Keys and values of full attention: every past token stays addressable (spec 01 KV)."""

import logging
from collections.abc import Sequence
from functools import cache

from forerun.cache.pieces import Piece
from forerun.cache.row_cache import WRITE_OPEN, RowCache
from forerun.cache.rows import Rows, RowShape
from forerun.cache.snapshots import RowSnapshot, rows_of
from forerun.contract.cache import Snapshot, SnapshotPair
from forerun.contract.history import History, Write

_log = logging.getLogger(__name__)


class KVCache(RowCache):
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
        super().__init__(shape)
        self._context = context
        self._reserve = shape.device.type == "cpu" if reserve is None else reserve
        self._smallest_class = smallest_class

    def nbytes(self) -> int:
        return self._offset * self._shape.row_bytes

    def begin_write(self, tokens: int) -> Write:
        assert self._announced is None, WRITE_OPEN
        start = self._offset
        end = start + tokens
        assert end <= self._context, (start, tokens, self._context)
        if self._schedule.offsets:
            self._schedule.reach(start, start, self._range)
        self._lazy.save_within(start, end)
        if end > self._count:
            self._grow(end)
        rows = self._rows
        keys, values = rows.keys, rows.values
        # the history has whole buffers: to slice them takes as long as all else here
        write = Write(keys, values, start, History(keys, values, end))
        self._announced = tokens
        return write

    def end_write(self, tokens: int) -> None:
        self._close_write(tokens)
        start = self._offset
        self._offset = end = start + tokens
        if tokens and self._schedule.offsets:
            self._schedule.reach(start, end, self._range)

    def view(self) -> History:
        self._assert_no_write()
        return self._history(self._offset)

    def snapshot(self, start: int) -> RowSnapshot | None:
        self._assert_no_write()
        return self._range(start, self._offset)

    def prepare_snapshots(self, offsets: Sequence[int]) -> None:
        self._schedule.prepare(offsets, self._offset)

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        self._assert_no_write()
        if snapshot is None:
            if not 0 <= target <= self._offset:
                return False
            self._offset = target
            return True
        held = rows_of(snapshot)
        if not 0 <= target <= held.end or self._offset < held.start:
            return False
        foreign = [piece for piece in held.pieces if piece.lazy is not self._lazy]
        if foreign:
            self._copy_in(foreign, held.start, target)
        self._offset = target
        return True

    def split(self, snapshot: Snapshot | None, at: int) -> SnapshotPair:
        if snapshot is None:
            return None, None
        held = rows_of(snapshot)
        if at <= held.start:
            return None, held
        if at >= held.end:
            return held, None
        return held.cut(at)

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        if parent is None or child is None:
            for lone in (parent, child):
                if lone is not None:
                    lone.close()
            return None
        return rows_of(parent).followed_by(rows_of(child))

    def merge_frees(self, parent: Snapshot | None, child: Snapshot | None) -> int:
        if parent is not None and child is not None:
            return 0
        return sum(lone.size() for lone in (parent, child) if lone is not None)

    def reissue(self, snapshot: Snapshot) -> Snapshot:
        if snapshot.end > self._offset or not snapshot.size():
            return snapshot
        live = self._range(snapshot.start, snapshot.end)
        assert live is not None, (snapshot.start, snapshot.end)
        snapshot.close()
        return live

    def _history(self, live: int) -> History:
        return History(self._rows.keys[:, :, :live], self._rows.values[:, :, :live], live)

    def _part(self, low: int, high: int) -> Rows:
        return self._rows.part(low, high)

    def _range(self, start: int, end: int) -> RowSnapshot | None:
        return RowSnapshot(start, [self._lazy.issue(start, end)]) if start < end else None

    def _copy_in(self, pieces: Sequence[Piece], start: int, target: int) -> None:
        """Copy the rows that `target` tokens need to where they belong.

        Of the same snapshot, this cache's own lazy pieces lie between them: they stay where they
        are, since no two pieces name the same row. What allocates comes first.
        """
        needed = [(piece.own(), piece.first) for piece in pieces if piece.first < target]
        if not needed:
            return
        assert target <= self._context, (target, self._context)
        for rows, first in needed:
            self._lazy.save_within(first, min(first + rows.count, target))
        if target > self._count:
            self._grow(target)
        self._offset = start
        for rows, first in needed:
            count = min(rows.count, target - first)
            kept = rows if count == rows.count else rows.part(0, count)
            self._part(first, first + count).copy_from(kept)

    def _grow(self, needed: int) -> None:
        """A buffer of at least `needed` rows, holding the live ones and those of lazy pieces."""
        kept = max(self._offset, self._lazy.end())
        grown = self._allocated(needed)
        grown.part(0, kept).copy_from(self._part(0, kept))
        self._replace(grown)

    def _allocated(self, needed: int) -> Rows:
        if self._reserve:
            try:
                return self._shape.empty(self._context)
            except RuntimeError as refusal:  # what torch raises when the system has no more
                _log_refusal(self._context, str(refusal))
        capacity = max(self._smallest_class, 1 << (needed - 1).bit_length())
        return self._shape.empty(min(capacity, self._context))


@cache  # sibling layers are refused alike
def _log_refusal(context: int, reason: str) -> None:
    _log.info("cannot reserve %d tokens at once, caches grow instead: %s", context, reason)
