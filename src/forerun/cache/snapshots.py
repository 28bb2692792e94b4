"""Snapshots of rows: adjacent pieces, each lazy or owned, so that joining them copies nothing."""

from collections.abc import Sequence

from forerun.cache.pieces import Piece, joined
from forerun.contract.cache import MaterializeHook, Snapshot


class RowSnapshot:
    """Rows of positions `[first, end)` of one layer, which stand for its state over `[start, end)`.

    `first` and `start` differ for a sliding window, whose state at `end` is its last rows wherever
    the snapshot before it ended.
    """

    def __init__(self, start: int, pieces: Sequence[Piece]) -> None:
        self.start, self.first, self.end = start, pieces[0].first, pieces[-1].end
        self._pieces = list(pieces)  # empty once closed

    @property
    def pieces(self) -> Sequence[Piece]:
        assert self._pieces, "used after close"
        return self._pieces

    def size(self) -> int:
        return sum(piece.size() for piece in self.pieces)

    def lazy_bytes(self) -> int:
        return sum(piece.lazy_bytes() for piece in self.pieces)

    def set_materialize_hook(self, hook: MaterializeHook | None) -> None:
        for piece in self.pieces:
            piece.hook = hook

    def close(self) -> None:
        assert self._pieces, "closed twice"
        for piece in self.release():
            piece.drop()

    def release(self) -> list[Piece]:
        """Close, and hand the pieces on to another snapshot, whose holder sets its own hook."""
        self.set_materialize_hook(None)
        pieces, self._pieces = self._pieces, []
        return pieces

    def followed_by(self, other: "RowSnapshot") -> "RowSnapshot":
        """Both in one, which takes over their storage."""
        assert self.end == other.start, (self.start, self.end, other.start, other.end)
        return RowSnapshot(self.start, joined(self.release(), other.release()))

    def cut(self, at: int) -> tuple["RowSnapshot", "RowSnapshot"]:
        """The rows before and after position `at`, each in storage of its own size.

        A copy that fails leaves the snapshot whole.
        """
        before = [piece for piece in self.pieces if piece.end <= at]
        after = [piece for piece in self.pieces if at <= piece.first]
        for piece in self.pieces:
            if piece.first < at < piece.end:
                left, right = piece.cut(at)
                before, after = [*before, left], [right, *after]
        self.release()
        return RowSnapshot(self.start, before), RowSnapshot(at, after)


def rows_of(snapshot: Snapshot) -> RowSnapshot:
    assert isinstance(snapshot, RowSnapshot), "a snapshot goes back to the kind that took it"
    return snapshot
