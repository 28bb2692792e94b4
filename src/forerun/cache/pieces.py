"""Pieces of a snapshot: rows of a live buffer until they are overwritten, copies from then on."""

from collections.abc import Callable
from math import inf

from forerun.cache.rows import Rows
from forerun.contract.cache import MaterializeHook


class Piece:
    """Rows of positions `[first, end)`. While lazy it names its cache's rows and holds no tensor: a
    view would change with every write in place, and keep the whole buffer alive.
    """

    def __init__(
        self, first: int, end: int, *, lazy: "LazyPieces | None" = None, rows: Rows | None = None
    ) -> None:
        assert (lazy is None) != (rows is None), "either lazy or owned"
        self.first, self.end = first, end
        self.lazy = lazy
        self.hook: MaterializeHook | None = None  # told once, at the copy-out
        self._rows = rows

    def size(self) -> int:
        return 0 if self._rows is None else self._rows.storage_bytes

    def lazy_bytes(self) -> int:
        return 0 if self.lazy is None else self.lazy.rows(self.first, self.end).nbytes

    def own(self) -> Rows:
        """The rows in storage of their own, copied out of the live buffer the first time.

        A copy that fails leaves the piece lazy, and known.
        """
        if self.lazy is not None:
            self._rows = self.lazy.rows(self.first, self.end).compact()
            self.lazy.forget(self)
            hook, self.lazy, self.hook = self.hook, None, None
            if hook is not None:
                hook(self._rows.storage_bytes)
        assert self._rows is not None, "used after close"
        return self._rows

    def drop(self) -> None:
        if self.lazy is not None:
            self.lazy.forget(self)
        self.lazy, self.hook, self._rows = None, None, None

    def cut(self, at: int) -> tuple["Piece", "Piece"]:
        """Its two parts, which take its place. Those of owned rows are compact copies (KV-13)."""
        assert self.first < at < self.end, (self.first, at, self.end)
        if self.lazy is not None:
            parts = self.lazy.issue(self.first, at), self.lazy.issue(at, self.end)
        else:
            rows, middle = self.own(), at - self.first
            before, after = rows.part(0, middle).compact(), rows.part(middle, rows.count).compact()
            parts = Piece(self.first, at, rows=before), Piece(at, self.end, rows=after)
        self.drop()
        return parts


def joined(before: list[Piece], after: list[Piece]) -> list[Piece]:
    """All of both. Where they meet, lazy pieces of one cache become one (KV-12); none is copied."""
    last, first = before[-1], after[0]
    assert last.end == first.first, (last.end, first.first)
    if last.lazy is None or last.lazy is not first.lazy:
        return [*before, *after]
    middle = last.lazy.issue(last.first, first.end)
    last.drop()
    first.drop()
    return [*before[:-1], middle, *after[1:]]


class LazyPieces:
    """The pieces that still name rows of one cache's live buffer.

    Law: none of the rows they name has been overwritten (KV-5). The cache keeps it by calling a
    `save` before it overwrites, moves away or drops rows.
    """

    def __init__(self, rows: Callable[[int, int], Rows]) -> None:
        """`rows(low, high)` is a view of the live rows of those positions."""
        self.rows = rows
        self._open: dict[Piece, None] = {}  # a set in the order of issue
        # No piece names a position in [_clear_from, _clear_to): after the first write that follows
        # a rewind, those after it need no scan, however many snapshots lie ahead of them.
        self._clear_from: float = 0
        self._clear_to: float = inf

    def issue(self, first: int, end: int) -> Piece:
        piece = Piece(first, end, lazy=self)
        self._open[piece] = None
        if first < self._clear_to and self._clear_from < end:
            self._clear_from = end
        return piece

    def forget(self, piece: Piece) -> None:
        del self._open[piece]

    def end(self) -> int:
        """No piece names a row from here on."""
        return max((piece.end for piece in self._open), default=0)

    def save_within(self, low: int, high: int) -> None:
        """Copy out every piece that names a row of positions `[low, high)`."""
        if self._clear_from <= low and high <= self._clear_to:
            return
        for piece in [p for p in self._open if p.first < high and low < p.end]:
            piece.own()
        self._clear_from = low
        self._clear_to = min((p.first for p in self._open if p.first >= high), default=inf)

    def save_outside(self, low: int, high: int) -> None:
        """Copy out every piece that names a row out of positions `[low, high)`."""
        for piece in [p for p in self._open if p.first < low or high < p.end]:
            piece.own()

    def save_all(self) -> None:
        for piece in list(self._open):
            piece.own()
