"""What the caches of keys and values have in common: a live buffer and writes in two halves."""

from abc import ABC, abstractmethod

from torch import Tensor

from forerun.cache.pieces import LazyPieces
from forerun.cache.rows import Rows, RowShape
from forerun.cache.schedule import Schedule
from forerun.contract.cache import Snapshot
from forerun.contract.history import History, Write

WRITE_OPEN = "the write before this has not ended"


class RowCache(ABC):
    """A kind says where rows lie, which of them its state is made of, and what a write moves.

    Law: a `begin_write` that raises has begun nothing (WRT-2). So what allocates comes first in
    it, and `_announced` last.
    """

    def __init__(self, shape: RowShape) -> None:
        self._shape = shape
        self._rows = shape.empty(0)
        self._count = 0  # of `_rows`: to ask a tensor takes as long as all else in a write
        self._lazy = LazyPieces(self._part)
        self._schedule = Schedule()
        self._announced: int | None = None  # rows of the write under way
        self._offset = 0
        self._generation = 0

    @property
    def shape(self) -> RowShape:
        """Of one token's keys and values."""
        return self._shape

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def generation(self) -> int:
        return self._generation

    @abstractmethod
    def begin_write(self, tokens: int) -> Write: ...

    @abstractmethod
    def end_write(self, tokens: int) -> None: ...

    def update(self, keys: Tensor, values: Tensor) -> History:
        tokens = keys.shape[2]
        write = self.begin_write(tokens)
        write.store(keys, values)
        self.end_write(tokens)
        return write.history

    def take_snapshots(self) -> list[Snapshot | None]:
        return self._schedule.take()

    def free(self) -> None:
        self._assert_no_write()
        self._schedule.drop()
        self._lazy.save_all()
        self._replace(self._shape.empty(0))
        self._offset = 0

    @abstractmethod
    def _part(self, low: int, high: int) -> Rows:
        """A view of the live rows of positions `[low, high)`."""

    def _close_write(self, tokens: int) -> int:
        """Rows that were announced, of which `tokens` have been written."""
        announced = self._announced
        assert announced is not None, "no write has begun"
        assert 0 <= tokens <= announced, (tokens, announced)
        self._announced = None
        return announced

    def _replace(self, rows: Rows) -> None:
        self._rows, self._count = rows, rows.count
        self._generation += 1

    def _assert_no_write(self) -> None:
        assert self._announced is None, WRITE_OPEN
