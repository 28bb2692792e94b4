"""What layers of every kind that run in one call are to the stack of them."""

from collections.abc import Callable
from typing import Protocol

from forerun.contract.batch import Batch
from forerun.contract.cache import LayerCache
from forerun.contract.history import Write
from forerun.contract.recurrence import RecurrentWrite

RunRow = Callable[[int, int], None]  # a layer over a row of the batch, of that length
AnyWrite = Write | RecurrentWrite | None  # as in `Batch.writes`; a layer knows its kind of them


class FusedLayer(Protocol):
    """A layer of one kind or the other, between its cache and its kernel."""

    @property
    def nbytes(self) -> int: ...

    def begin(self, cache: LayerCache | None, batch: Batch) -> AnyWrite:
        """A write for the batch, all of whose rows advance in step."""
        ...

    def end(self, cache: LayerCache | None, write: AnyWrite, tokens: int) -> None:
        """So many tokens of it count; none of them undoes it."""
        ...

    def place(self, batch: Batch, write: AnyWrite) -> bool:
        """Have the kernel read and write where the write says, for a batch of one row.

        False where it has no such place: the row is then `written`.
        """
        ...

    def within_batch(self, batch: Batch, run: RunRow) -> None:
        """Each row alone, and what it leaves forgotten at once (CON-9)."""
        ...

    def written(self, batch: Batch, write: AnyWrite, run: RunRow) -> None:
        """One row after the other, wherever the write has room for them."""
        ...
