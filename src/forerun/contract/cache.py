"""What every per-layer cache promises, whatever it stores (spec 01 CTR, WRT, PND).

The laws hold for any kind and any interleaving of calls; `tests/laws` drives each kind through
them. *Offset* counts tokens from the start of the sequence: it is the position of the next write.

1. `restore(None, t)` returning True leaves the cache as if only the first `t` tokens were written.
2. `restore(s, t)` returning True leaves it with the tokens that `s` stands for, up to `t`;
   positions before `s.start` keep what they hold. It does not consume `s`.
3. A refused restore (False) changes nothing.
4. Taking a snapshot changes nothing, and nothing written later changes what it restores.
5. A capture prepared at offset o restores what the cache held after exactly o tokens.
6. `size()` counts what a snapshot owns: 0 while it is lazy. The hook hears each byte once, at the
   copy-out that makes it owned.
7. `begin_write(n)`, n rows stored, `end_write(m)` with m <= n leaves what writing m rows leaves;
   m = 0 undoes `begin_write`. Between the two no other call is made on that cache.
   A recurrent kind's `begin_write(n)` is ended by `put`, of m tokens, under the same law.
8. Live tensors keep their address except after `free` or growth, which `generation` counts. Of a
   recurrent kind on a CPU, where no captured graph knows them, there are two sets that take turns.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from forerun.contract.history import History, Write
from forerun.contract.recurrence import RecurrentState, RecurrentUpdate, RecurrentWrite

MaterializeHook = Callable[[int], None]  # takes the bytes that a snapshot has just come to own


class Snapshot(Protocol):
    """One layer's state over positions `[start, end)`, owned by its holder, who closes it once."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    def size(self) -> int:
        """Bytes of storage that closing this snapshot would free: 0 while it is lazy."""
        ...

    def lazy_bytes(self) -> int:
        """Bytes that it would come to own by copying out all that it does not own yet."""
        ...

    def set_materialize_hook(self, hook: MaterializeHook | None) -> None:
        """Called with the bytes of each later copy-out, until the snapshot is closed."""
        ...

    def close(self) -> None:
        """Let go of the state. Closing twice, or using it afterwards, is an assertion error."""
        ...


SnapshotPair = tuple[Snapshot | None, Snapshot | None]


@runtime_checkable
class LayerCache(Protocol):
    """One layer's state of one sequence. A stateless layer has None for a cache."""

    @property
    def offset(self) -> int: ...

    @property
    def generation(self) -> int:
        """Grows whenever buffer addresses change, so that captured graphs know to be dropped."""
        ...

    def nbytes(self) -> int:
        """Bytes of live state written so far (memory reserved and untouched is not counted)."""
        ...

    def snapshot(self, start: int) -> Snapshot | None:
        """State from `start` to the offset, lazy where the kind allows; None where it is empty."""
        ...

    def prepare_snapshots(self, offsets: Sequence[int]) -> None:
        """Capture the state as later writes reach each of `offsets`, strictly ascending from here.

        Every schedule, an empty one too, is drained by `take_snapshots` before the next one.
        """
        ...

    def take_snapshots(self) -> list[Snapshot | None]:
        """One entry a prepared offset, None where it was never reached or spans no token."""
        ...

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        """Return to `target` tokens, from `snapshot` or, when None, from live state alone."""
        ...

    def split(self, snapshot: Snapshot | None, at: int) -> SnapshotPair:
        """The parts before and after absolute offset `at`. Takes ownership of its input."""
        ...

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        """One snapshot over two adjacent ones. Takes ownership of both."""
        ...

    def merge_frees(self, parent: Snapshot | None, child: Snapshot | None) -> int:
        """Bytes that `merge` of the two would free, less those that it would copy out (EVI-9)."""
        ...

    def reissue(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot of the same tokens that owns no more than live state makes necessary.

        The caller vouches that this cache now holds those tokens, and nothing else, up to its
        offset. Takes ownership; what is returned may be `snapshot` itself.
        """
        ...

    def free(self) -> None:
        """Drop live state and schedule, offset 0. Lazy snapshots copy out first and stay valid."""
        ...


@runtime_checkable
class AttentionCache(LayerCache, Protocol):
    """Keys and values. Heads, head sizes, dtype and device are fixed when it is made."""

    def begin_write(self, tokens: int) -> Write:
        """Make room for `tokens` rows, after saving what they would overwrite."""
        ...

    def end_write(self, tokens: int) -> None:
        """Count the rows really written, and fire the captures that they reach."""
        ...

    def update(self, keys: Tensor, values: Tensor) -> History:
        """Exactly `begin_write`, `Write.store`, `end_write`; rows are `[B, heads, n, D]`."""
        ...

    def view(self) -> History:
        """The rows as they are, read-only: for drafts that attend over a target's cache."""
        ...


@runtime_checkable
class RecurrentLayerCache(LayerCache, Protocol):
    """A running state that sums up the whole past; it rewinds only through snapshots."""

    def get(self, rows: int, dtype: torch.dtype) -> RecurrentState:
        """The live state, zeros before the first `put`. Read it until the next write.

        Inputs that are pending are folded in first. Asking later for other rows or another conv
        dtype is an assertion error.
        """
        ...

    def snapshot_splits(self, tokens: int) -> list[int]:
        """Where a forward over `tokens` must report its state, counted from the forward's start."""
        ...

    def put(self, update: RecurrentUpdate) -> None:
        """What a forward made of the state before it, with what is due at its splits.

        Ends the write that `begin_write` began, whose update this is; else it follows a `get`, and
        brings an end state and the splits'. The offset grows by the update's lengths, which agree:
        rows of one cache advance in step.
        """
        ...

    def begin_write(self, tokens: int) -> RecurrentWrite:
        """A write into tensors of the cache, which `put` ends.

        Those of an end state and the splits', or, of a round, those of its inputs where the kind
        replays them (REC-5). Rows and dtype are known: from the shape, a `get` or a restore.
        """
        ...
