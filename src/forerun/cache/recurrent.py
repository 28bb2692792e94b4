"""The running state of a linear-recurrent layer, which sums up the whole past (spec 01 REC).

A refused draft moves no data (REC-5): a round leaves its inputs beside the state before it, its
captures are counts of these inputs, and to restore one is to count them off. The write after that
folds in those that stand. So a round reads a state once and writes one, whatever was refused.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from forerun.cache.places import Place, compact
from forerun.cache.recurrent_snapshots import LazyStates, RecurrentSnapshot, held
from forerun.cache.schedule import Schedule
from forerun.contract.cache import Snapshot, SnapshotPair
from forerun.contract.model import WIDEST_ROUND
from forerun.contract.recurrence import (
    Fold,
    RecurrentState,
    RecurrentUpdate,
    RecurrentWrite,
    StateShape,
)
from forerun.kernels.gated_delta.reference import reference_fold


@dataclass(frozen=True, slots=True)
class _Begun:
    write: RecurrentWrite
    into: Place  # where the live state will be, if the write counts


class RecurrentCache:
    """Rewinds through snapshots only: a token that has been folded in cannot be taken out.

    The state is that of the live place, with the first `_pending` of the inputs there folded in.
    Each write leaves its results in the other place, or a round that has nothing to fold in its
    inputs in this one, so that `put` has nothing to copy and `put` of no tokens nothing to undo.

    Captured graphs know addresses. Where there may be some, on any device but a CPU, results are
    copied from the other place into the one and only live place, and rounds bring states.

    Laws
    1. A `put` that raises has put nothing, and has ended the write that `begin_write` began. So
       what allocates and what may be refused comes first in it.
    2. Nothing overwrites a place before the lazy snapshots that name it are copied out.
    """

    def __init__(
        self, shape: StateShape, fold: Fold = reference_fold, *, replay: bool | None = None
    ) -> None:
        """
        fold    how the layer folds inputs into a state; to the last bit, or text depends on drafts
        replay  keep the inputs of rounds, and let places take turns; None: on a CPU
        """
        self._shape, self._fold = shape, fold
        self._replays = shape.device.type == "cpu" if replay is None else replay
        self._live: Place | None = None
        self._other: Place | None = None
        self._pending = 0
        self._inner: list[RecurrentState] = []  # where a layer leaves its states at the splits
        self._lazy = LazyStates(fold)
        self._schedule = Schedule()
        self._begun: _Begun | None = None
        self._offset = 0
        self._generation = 0

    @property
    def offset(self) -> int:
        return self._offset

    @property
    def generation(self) -> int:
        return self._generation

    def nbytes(self) -> int:
        places = sum(place.nbytes() for place in (self._live, self._other) if place is not None)
        return places + sum(state.conv.nbytes + state.delta.nbytes for state in self._inner)

    def get(self, rows: int, dtype: torch.dtype) -> RecurrentState:
        self._assert_no_write()
        assert rows == self._shape.batch, (rows, self._shape.batch)
        state = self._settled(self._live_of(dtype)).state()
        assert state.conv.dtype == dtype, (dtype, state.conv.dtype)
        return state

    def snapshot_splits(self, tokens: int) -> list[int]:
        inside = self._schedule.due(self._offset + 1, self._offset + tokens - 1)
        return [offset - self._offset for offset in inside]

    def begin_write(self, tokens: int) -> RecurrentWrite:
        self._assert_no_write()
        live, splits = self._known(), tuple(self.snapshot_splits(tokens))
        if splits and tokens <= WIDEST_ROUND and self._replays:
            begun = self._begin_round(live, tokens, splits)
        else:
            begun = self._begin_states(live, tokens, splits)
        self._begun = begun
        return begun.write

    def put(self, update: RecurrentUpdate) -> None:
        begun, self._begun = self._begun, None
        assert len(set(update.lengths)) == 1, f"rows of one cache advance in step: {update.lengths}"
        tokens = update.lengths[0]
        if begun is None:
            self._put_given(update, tokens)
            return
        announced = begun.write.update
        assert tokens <= announced.lengths[0], (tokens, announced.lengths)
        assert update.end is announced.end, "not what this write was given to fill"
        if tokens and announced.inputs is not None:
            self._put_round(begun.into, tokens)
        else:
            self._put_states(begun, tokens)

    def snapshot(self, start: int) -> RecurrentSnapshot | None:
        self._assert_no_write()
        if self._live is None or self._offset == 0:
            return None
        return RecurrentSnapshot(min(start, self._offset), self._offset, state=self._copied())

    def prepare_snapshots(self, offsets: Sequence[int]) -> None:
        self._assert_no_write()
        self._schedule.check(offsets, self._offset)
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
        found = held(snapshot)
        lazy = found.lazy
        if target != found.end:
            return False
        if lazy is not None and lazy.among is self._lazy:
            self._stand_at(lazy.place, lazy.count)
        else:
            state = found.state
            self._take_over(self._live_of(state.conv.dtype), state)
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
        self._lazy.save_all()
        self._live = self._other = None
        self._inner, self._pending = [], 0
        self._generation += 1
        self._offset = 0

    def _begin_round(self, live: Place, tokens: int, splits: tuple[int, ...]) -> _Begun:
        pending, folded, before = None, None, live.state(self._pending)
        into = self._beside(live) if self._pending else live
        inputs = into.inputs(tokens)
        self._lazy.save(into)
        if self._pending:
            pending, after = live.inputs(self._pending), into.state()
            after.conv.copy_(before.conv)
            folded = after.delta
        update = RecurrentUpdate(None, (tokens,) * self._shape.batch, inputs=inputs)
        return _Begun(RecurrentWrite(before, pending, folded, splits, update), into)

    def _begin_states(self, live: Place, tokens: int, splits: tuple[int, ...]) -> _Begun:
        into, before = self._beside(live), live.state(self._pending)
        inner = [] if self._replays else self._inner  # these stay: graphs may know them
        while len(inner) < len(splits):
            inner.append(self._shape.zeros(before.conv.dtype))
        self._lazy.save(into)
        pending = live.inputs(self._pending) if self._pending else None
        lengths = (tokens,) * self._shape.batch
        update = RecurrentUpdate(into.state(), lengths, tuple(inner[: len(splits)]))
        return _Begun(RecurrentWrite(before, pending, None, splits, update), into)

    def _put_round(self, into: Place, tokens: int) -> None:
        start = self._offset
        self._stand_at(into, tokens)
        self._offset += tokens
        self._schedule.reach(
            start,
            self._offset,
            lambda base, at: self._lazy.issue(into, at - start, base, at),
        )

    def _put_states(self, begun: _Begun, tokens: int) -> None:
        """Of a round, too, of which nothing counts."""
        write, live = begun.write, self._known()
        copies = self._copies(tokens, write.splits, write.update, fresh=self._replays)
        if tokens and self._replays:
            self._stand_at(begun.into, 0)
        elif tokens:
            live.take(begun.into.state())
        self._advance(tokens, copies)

    def _put_given(self, update: RecurrentUpdate, tokens: int) -> None:
        live, splits = self._known(), tuple(self.snapshot_splits(tokens))
        assert update.end is not None, "inputs belong to a write that has begun"
        assert len(update.splits) == len(splits), (len(update.splits), splits)
        copies = self._copies(tokens, splits, update)
        if tokens:
            self._take_over(live, update.end)
        self._advance(tokens, copies)

    def _copies(
        self,
        tokens: int,
        splits: tuple[int, ...],
        update: RecurrentUpdate,
        *,
        fresh: bool = False,
    ) -> dict[int, RecurrentState]:
        """Of the states at the offsets that a write of so many tokens reaches and that are due.

        fresh  those at the splits were made for this write alone: they need no copy
        """
        states = dict(zip(splits, update.splits, strict=False))
        copies = {}
        for at in self._schedule.due(self._offset, self._offset + tokens):
            done = at - self._offset
            if not done:
                copies[at] = self._copied()
                continue
            state = update.end if done == tokens else states[done]
            assert state is not None
            copies[at] = state if fresh and done < tokens else compact(state)
        return copies

    def _advance(self, tokens: int, copies: dict[int, RecurrentState]) -> None:
        start = self._offset
        self._offset += tokens
        self._schedule.reach(
            start, self._offset, lambda base, at: RecurrentSnapshot(base, at, state=copies[at])
        )

    def _copied(self) -> RecurrentState:
        return self._known().folded(self._pending, self._fold)

    def _settled(self, live: Place) -> Place:
        """The live place when nothing is pending any more."""
        if not self._pending:
            return live
        into, folded = self._beside(live), self._copied()
        self._lazy.save(into)
        into.take(folded)
        self._stand_at(into, 0)
        return into

    def _take_over(self, live: Place, state: RecurrentState) -> None:
        """Into the live tensors (CTR-8)."""
        self._lazy.save(live)
        live.take(state)
        self._pending = 0

    def _stand_at(self, place: Place, count: int) -> None:
        if place is not self._live:
            assert place is self._other, "a place of another life of this cache"
            self._live, self._other = place, self._live
        self._pending = count

    def _known(self) -> Place:
        if self._live is None:
            assert self._shape.dtype is not None, "nobody has asked for the state yet"
            return self._live_of(self._shape.dtype)
        return self._live

    def _live_of(self, dtype: torch.dtype) -> Place:
        if self._live is None:
            assert self._shape.dtype in (None, dtype), (dtype, self._shape.dtype)
            live = Place(self._shape, dtype)
            live.take(self._shape.zeros(dtype))
            self._live = live
            self._generation += 1
        return self._live

    def _beside(self, live: Place) -> Place:
        if self._other is None:
            self._other = Place(self._shape, live.state().conv.dtype)
        return self._other

    def _assert_no_write(self) -> None:
        assert self._begun is None, "the write before this has not ended"
