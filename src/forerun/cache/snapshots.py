"""Snapshots of rows: ranges of a live buffer until it is overwritten, copies from then on."""

from collections.abc import Callable
from dataclasses import dataclass

from forerun.cache.rows import Rows
from forerun.contract.cache import MaterializeHook


@dataclass(frozen=True, slots=True)
class RowRange:
    """Positions `[start, end)` that a snapshot stands for, and the rows `[first, end)` it names.

    The two differ for a sliding window, whose state at `end` is its last rows wherever the
    snapshot before it ended.
    """

    start: int
    first: int
    end: int

    def names(self, low: int, high: int) -> bool:
        """Whether a row of positions `[low, high)` is among the named ones."""
        return self.first < high and low < self.end


class RowSnapshot:
    """Rows of one layer. While lazy it names its cache and holds no tensor: a view would change
    with every write in place, and keep the whole buffer alive.
    """

    def __init__(self, named: RowRange, *, lazy: "LazySnapshots | None", rows: Rows | None) -> None:
        assert (lazy is None) != (rows is None), "either lazy or owned"
        self.named = named
        self._lazy, self._rows = lazy, rows
        self._hook: MaterializeHook | None = None

    @property
    def start(self) -> int:
        return self.named.start

    @property
    def end(self) -> int:
        return self.named.end

    def size(self) -> int:
        return 0 if self._rows is None else self._rows.storage_bytes

    def set_materialize_hook(self, hook: MaterializeHook | None) -> None:
        self._hook = hook

    def lazy_in(self, snapshots: "LazySnapshots") -> bool:
        return self._lazy is snapshots

    def own(self) -> Rows:
        """The rows in storage of their own, copied out of the live buffer the first time."""
        if self._lazy is not None:
            self._rows = self._lazy.copied(self)
            self._lazy = None
            if self._hook is not None:
                self._hook(self.size())
            self._hook = None
        assert self._rows is not None, "used after close"
        return self._rows

    def look(self) -> Rows:
        """The rows to read at once and not to keep: a view of the live buffer while lazy."""
        if self._lazy is not None:
            return self._lazy.rows(self.named.first, self.named.end)
        assert self._rows is not None, "used after close"
        return self._rows

    def close(self) -> None:
        assert self._lazy is not None or self._rows is not None, "closed twice"
        if self._lazy is not None:
            self._lazy.forget(self)
        self._lazy, self._rows, self._hook = None, None, None


class LazySnapshots:
    """The snapshots that still name rows of one cache's live buffer.

    Law: none of the rows they name has been overwritten (KV-5). The cache keeps it by calling a
    `save` before it overwrites, moves away or drops rows.
    """

    def __init__(self, rows: Callable[[int, int], Rows]) -> None:
        """`rows(low, high)` is a view of the live rows of those positions."""
        self.rows = rows
        self._open: list[RowSnapshot] = []
        self._end = 0  # no snapshot names a row from here on: most writes need no scan

    def issue(self, named: RowRange) -> RowSnapshot:
        snapshot = RowSnapshot(named, lazy=self, rows=None)
        self._open.append(snapshot)
        self._end = max(self._end, named.end)
        return snapshot

    def save_within(self, low: int, high: int) -> None:
        """Copy out every snapshot that names a row of positions `[low, high)`."""
        if low < self._end:
            for snapshot in [s for s in self._open if s.named.names(low, high)]:
                snapshot.own()

    def save_outside(self, low: int, high: int) -> None:
        """Copy out every snapshot that names a row out of positions `[low, high)`."""
        for snapshot in [s for s in self._open if s.named.first < low or high < s.named.end]:
            snapshot.own()

    def save_all(self) -> None:
        for snapshot in list(self._open):
            snapshot.own()

    def copied(self, snapshot: RowSnapshot) -> Rows:
        """Forgotten last: a copy that fails leaves the snapshot lazy, and known."""
        rows = self.rows(snapshot.named.first, snapshot.named.end).compact()
        self.forget(snapshot)
        return rows

    def forget(self, snapshot: RowSnapshot) -> None:
        self._open.remove(snapshot)
