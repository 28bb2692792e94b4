"""The running state of a linear-recurrent layer, which sums up the whole past (spec 01 REC).

Snapshots own a copy of the state from the start. Of a layer that brings a write's inputs instead of
its states (REC-5), the states that are due are computed in `put`: an unread capture then costs one
more scan, but no snapshot shares a forward's inputs with its siblings, whose bytes nobody could
say what closing one of them would free.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.cache.schedule import Schedule
from forerun.contract.cache import MaterializeHook, Snapshot, SnapshotPair
from forerun.contract.recurrence import (
    RecurrentInputs,
    RecurrentState,
    RecurrentUpdate,
    RecurrentWrite,
)
from forerun.kernels.gated_delta.chunked import gated_delta
from forerun.kernels.gated_delta.reference import DeltaRows


@dataclass(frozen=True, slots=True)
class StateShape:
    """What a layer's state looks like, and where it lives. Its conv dtype is the activations'."""

    tail: int  # conv inputs kept: one less than the kernel's taps
    channels: int
    value_heads: int
    value_dim: int
    key_dim: int
    device: torch.device
    batch: int = 1  # sequences that advance in step

    def zeros(self, dtype: torch.dtype) -> RecurrentState:
        conv = (self.batch, self.tail, self.channels)
        delta = (self.batch, self.value_heads, self.value_dim, self.key_dim)
        return RecurrentState(
            torch.zeros(conv, dtype=dtype, device=self.device),
            torch.zeros(delta, dtype=torch.float32, device=self.device),
        )


class RecurrentSnapshot:
    """The state after `end` tokens; `start` only says where the one before ended (PND-5)."""

    def __init__(self, state: RecurrentState, start: int, end: int) -> None:
        self.start, self.end = start, end
        self._state: RecurrentState | None = state

    @property
    def state(self) -> RecurrentState:
        assert self._state is not None, "used after close"
        return self._state

    def size(self) -> int:
        return _storage_bytes(self.state)

    def lazy_bytes(self) -> int:
        return 0

    def set_materialize_hook(self, hook: MaterializeHook | None) -> None:
        """There is no later copy-out to tell of."""

    def close(self) -> None:
        assert self._state is not None, "closed twice"
        self._state = None


class RecurrentCache:
    """Rewinds through snapshots only: a token that has been folded in cannot be taken out.

    Law: a `put` that raises has put nothing, and has ended the write that `begin_write` began. So
    what allocates and what may be refused comes first in it.
    """

    def __init__(self, shape: StateShape) -> None:
        self._shape = shape
        self._state: RecurrentState | None = None
        self._staged: list[RecurrentState] = []  # where a driver's layer leaves its results
        self._schedule = Schedule()
        self._announced: RecurrentWrite | None = None
        self._offset = 0
        self._generation = 0

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def generation(self) -> int:
        return self._generation

    def nbytes(self) -> int:
        live = () if self._state is None else (self._state,)
        return sum(_storage_bytes(state) for state in (*live, *self._staged))

    def get(self, rows: int, dtype: torch.dtype) -> RecurrentState:
        self._assert_no_write()
        assert rows == self._shape.batch, (rows, self._shape.batch)
        state = self._live(dtype)
        assert state.conv.dtype == dtype, (dtype, state.conv.dtype)
        return state

    def snapshot_splits(self, tokens: int) -> list[int]:
        inside = self._schedule.due(self._offset + 1, self._offset + tokens - 1)
        return [offset - self._offset for offset in inside]

    def begin_write(self, tokens: int) -> RecurrentWrite:
        """Results are left beside the live state, so that `put` of no tokens undoes the write."""
        self._assert_no_write()
        assert self._state is not None, "nobody has asked for the state yet"
        splits = tuple(self.snapshot_splits(tokens))
        while len(self._staged) <= len(splits):
            self._staged.append(self._shape.zeros(self._state.conv.dtype))
        end, *inner = self._staged[: len(splits) + 1]
        lengths = (tokens,) * self._shape.batch
        write = RecurrentWrite(self._state, splits, RecurrentUpdate(end, lengths, tuple(inner)))
        self._announced = write
        return write

    def put(self, update: RecurrentUpdate) -> None:
        announced, self._announced = self._announced, None
        assert len(set(update.lengths)) == 1, f"rows of one cache advance in step: {update.lengths}"
        tokens = update.lengths[0]
        start, end = self._offset, self._offset + tokens
        if announced is None:
            splits = tuple(self.snapshot_splits(tokens))
        else:
            splits = announced.splits
            assert tokens <= announced.update.lengths[0], (tokens, announced.update.lengths)
        captured = self._due_states(splits, update)
        if tokens:
            self._take_over(update.end)
        self._offset = end
        self._schedule.reach(start, end, lambda base, at: RecurrentSnapshot(captured[at], base, at))

    def snapshot(self, start: int) -> RecurrentSnapshot | None:
        self._assert_no_write()
        if self._state is None or self._offset == 0:
            return None
        return RecurrentSnapshot(_compact(self._state), min(start, self._offset), self._offset)

    def prepare_snapshots(self, offsets: Sequence[int]) -> None:
        self._assert_no_write()
        due_now = self._offset in offsets
        now = self.snapshot(self._offset) if due_now else None
        self._schedule.prepare(offsets, self._offset)
        if due_now:
            self._schedule.reach(self._offset, self._offset, lambda _base, _at: now)

    def take_snapshots(self) -> list[Snapshot | None]:
        return self._schedule.take()

    def restore(self, snapshot: Snapshot | None, target: int) -> bool:
        self._assert_no_write()
        if snapshot is None:
            return target == self._offset
        held = _held(snapshot)
        if target != held.end:
            return False
        self._live(held.state.conv.dtype)
        self._take_over(held.state)
        self._offset = target
        return True

    def split(self, snapshot: Snapshot | None, at: int) -> SnapshotPair:  # noqa: ARG002
        return None, snapshot

    def merge(self, parent: Snapshot | None, child: Snapshot | None) -> Snapshot | None:
        if parent is not None:
            parent.close()
        return child

    def merge_frees(self, parent: Snapshot | None, child: Snapshot | None) -> int:  # noqa: ARG002
        return 0 if parent is None else parent.size()

    def reissue(self, snapshot: Snapshot) -> Snapshot:
        return snapshot  # live state is at one offset, and moves on

    def free(self) -> None:
        self._assert_no_write()
        self._schedule.drop()
        self._state, self._staged = None, []
        self._generation += 1
        self._offset = 0

    def _live(self, dtype: torch.dtype) -> RecurrentState:
        if self._state is None:
            self._state = self._shape.zeros(dtype)
            self._generation += 1
        return self._state

    def _take_over(self, state: RecurrentState) -> None:
        """Into the live tensors, whose addresses captured graphs know (CTR-8)."""
        live = self._state
        assert live is not None
        parts = ((live.conv, state.conv), (live.delta, state.delta))
        for kept, new in parts:
            assert (new.shape, new.dtype) == (kept.shape, kept.dtype), (new.shape, new.dtype)
        for kept, new in parts:
            kept.copy_(new)

    def _due_states(
        self, splits: tuple[int, ...], update: RecurrentUpdate
    ) -> dict[int, RecurrentState]:
        """Copies of the states at the offsets that this write reaches and that are due."""
        live, start, tokens = self._state, self._offset, update.lengths[0]
        assert live is not None, "nobody has asked for the state yet"
        reached = [split for split in splits if split < tokens]
        if update.splits:
            assert len(update.splits) == len(splits), (len(update.splits), splits)
            inside = [_compact(state) for state in update.splits[: len(reached)]]
        elif reached:
            assert update.inputs is not None, f"neither states nor inputs for the splits {splits}"
            inside = _replayed(live, update.inputs, reached)
        else:
            inside = []
        states = {start + split: state for split, state in zip(reached, inside, strict=True)}
        ends = ((start, live), (start + tokens, update.end))
        due = self._schedule.due(start, start + tokens)
        return states | {at: _compact(state) for at, state in ends if at in due}

    def _assert_no_write(self) -> None:
        assert self._announced is None, "the write before this has not ended"


def _replayed(
    before: RecurrentState, inputs: RecurrentInputs, splits: list[int]
) -> list[RecurrentState]:
    """The states after the first `splits` columns.

    The whole scan of the layer runs again, so that its states are the same to the last bit.
    """
    rows = DeltaRows(
        inputs.keys,  # to have something to read with: nobody looks at the outputs
        inputs.keys,
        inputs.values,
        inputs.decay,
        inputs.beta,
    )
    *deltas, _ = gated_delta(rows, before.delta, boundaries=splits).states
    conv, tail = torch.cat((before.conv, inputs.conv), dim=1), before.conv.shape[1]
    return [
        _compact(RecurrentState(conv[:, at : at + tail], delta))
        for at, delta in zip(splits, deltas, strict=True)
    ]


def _compact(state: RecurrentState) -> RecurrentState:
    """A copy in storage of its own, no larger than the state (CNV-3)."""
    copied = RecurrentState(_cloned(state.conv), _cloned(state.delta))
    assert _storage_bytes(copied) == copied.conv.nbytes + copied.delta.nbytes
    return copied


def _cloned(part: Tensor) -> Tensor:
    return part.clone(memory_format=torch.contiguous_format)


def _storage_bytes(state: RecurrentState) -> int:
    return sum(part.untyped_storage().nbytes() for part in (state.conv, state.delta))


def _held(snapshot: Snapshot) -> RecurrentSnapshot:
    assert isinstance(snapshot, RecurrentSnapshot), "a snapshot goes back to the kind that took it"
    return snapshot
