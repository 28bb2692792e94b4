"""Keys and values of sliding-window attention: the last tokens only (spec 01 ROT)."""

from collections.abc import Sequence

from forerun.cache.applier import WindowApplier
from forerun.cache.pieces import Piece
from forerun.cache.row_cache import RowCache
from forerun.cache.rows import Rows, RowShape
from forerun.cache.snapshots import RowSnapshot, rows_of
from forerun.contract.cache import Snapshot, SnapshotPair
from forerun.contract.history import History, Write


class RotatingCache(RowCache):
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
        slack   tokens below the highest offset that a live rewind always reaches; what a model
                asks for has a floor of its own (`CacheOptions`)
        """
        assert window > 0, window
        assert slack > 0, slack
        super().__init__(shape)
        self._window, self._slack = window, slack
        self._held = window + slack  # rows kept whenever the buffer is tidied (ROT-1)
        self._capacity = window + 2 * slack
        self._staging: Rows | None = None  # where the rows of a write go, if not into the buffer
        self._base = self._floor = 0

    def nbytes(self) -> int:
        return (self._offset - self._floor) * self._shape.row_bytes

    def begin_write(self, tokens: int) -> Write:
        self._assert_no_write()
        self._reserve()
        if self._schedule.offsets:
            self._schedule.reach(self._offset, self._offset, self._state)
        full = self._offset - self._base + tokens > self._capacity
        if full and tokens > self._slack:
            write = self._begin_staged(tokens)
        else:
            write = self._begin_in_place(tokens, compact=full)
        self._announced = tokens
        return write

    def end_write(self, tokens: int) -> None:
        announced, staging = self._close_write(tokens), self._staging
        self._staging = None
        if not tokens:
            return
        start = self._offset
        if staging is None:
            self._offset += tokens
            if self._schedule.offsets:
                self._schedule.reach(start, self._offset, self._state)
            return
        old = staging.count - announced
        self._commit(staging.part(old, old + tokens))
        self._schedule.reach(
            start,
            self._offset,
            lambda before, end: self._state_in(staging, start - old, before, end),
        )

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

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        self._assert_no_write()
        if snapshot is None:
            if not 0 <= target <= self._offset or self._floor > self._first_of(target):
                return False
            self._offset = target
            return True
        held = rows_of(snapshot)
        if not 0 <= target <= held.end or held.first > self._first_of(target):
            return False
        (piece,) = held.pieces
        if piece.lazy is not self._lazy:
            self._copy_in(piece)
        self._floor, self._offset = held.first, target
        return True

    def split(self, snapshot: Snapshot | None, at: int) -> SnapshotPair:  # noqa: ARG002
        return None, snapshot  # a state cannot be cut: all of it is needed at its end

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        if parent is not None:
            parent.close()
        return child

    def merge_frees(self, parent: Snapshot | None, child: Snapshot | None) -> int:  # noqa: ARG002
        return 0 if parent is None else parent.size()

    def reissue(self, snapshot: Snapshot) -> Snapshot:
        return snapshot  # its rows are soon pushed out

    def free(self) -> None:
        super().free()
        self._base = self._floor = 0

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
        return RowSnapshot(start, [self._lazy.issue(first, end)]) if end else None

    def _state_in(self, staging: Rows, oldest: int, start: int, end: int) -> RowSnapshot | None:
        """The state inside a staged chunk, whose column 0 holds position `oldest` (ROT-11)."""
        first = self._first_of(end)
        if self._floor <= first:
            return self._state(start, end)
        rows = staging.part(first - oldest, end - oldest).compact()
        return RowSnapshot(start, [Piece(first, end, rows=rows)])

    def _begin_in_place(self, tokens: int, *, compact: bool) -> Write:
        if compact:
            self._compact(self._held)
        end = self._offset + tokens
        self._lazy.save_within(self._offset, end)
        oldest = self._oldest_visible()
        history = self._history(self._part(oldest, end), oldest)
        first = self._offset - self._base
        return Write(self._rows.keys, self._rows.values, first, history, window=self._window)

    def _begin_staged(self, tokens: int) -> Write:
        """Room of its own for a chunk that would push out rows which its queries see (ROT-7)."""
        oldest = self._oldest_visible()
        old = self._part(oldest, self._offset)
        staging = self._shape.empty(old.count + tokens)
        staging.part(0, old.count).copy_from(old)
        history = self._history(staging, oldest)
        self._staging = staging
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
        """Move the last `keep` rows to the front of the buffer. Only the copy-outs allocate."""
        first = max(self._floor, self._offset - keep)
        shift, count = first - self._base, self._offset - first
        if shift:
            self._lazy.save_outside(first, self._offset)
            # in blocks of the distance, so that no copy overlaps its source
            for low in range(0, count, shift):
                high = min(low + shift, count)
                self._rows.part(low, high).copy_from(self._rows.part(low + shift, high + shift))
            self._base = self._floor = first

    def _copy_in(self, piece: Piece) -> None:
        """Copy another's rows to where they belong, or to the front if they do not fit there."""
        rows = piece.own()
        self._reserve()
        if self._base <= piece.first and piece.end - self._base <= self._capacity:
            self._lazy.save_within(piece.first, piece.end)
        else:
            self._lazy.save_all()
            self._base = piece.first
        self._part(piece.first, piece.end).copy_from(rows)

    def _reserve(self) -> None:
        if not self._count:
            self._replace(self._shape.empty(self._capacity))
