"""Snapshots of a recurrent layer: a round's inputs to count off, or a state of their own."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from forerun.cache.places import Place
from forerun.contract.cache import MaterializeHook, Snapshot
from forerun.contract.recurrence import Fold, RecurrentState


class RecurrentSnapshot:
    """The state after `end` tokens; `start` only says where the one before ended (PND-5).

    While lazy it names a place of its cache and how many of a round's inputs there belong to it,
    and holds no tensor.
    """

    def __init__(
        self,
        start: int,
        end: int,
        *,
        state: RecurrentState | None = None,
        lazy: "LazyState | None" = None,
    ) -> None:
        assert (lazy is None) != (state is None), "either lazy or owned"
        self.start, self.end = start, end
        self._state, self._lazy = state, lazy
        self._hook: MaterializeHook | None = None

    @property
    def lazy(self) -> "LazyState | None":
        self._assert_open()
        return self._lazy

    @property
    def state(self) -> RecurrentState:
        """Computed anew each time while lazy."""
        self._assert_open()
        if self._lazy is not None:
            return self._lazy.computed()
        assert self._state is not None
        return self._state

    def size(self) -> int:
        self._assert_open()
        if self._state is None:
            return 0
        owned = [part.untyped_storage().nbytes() for part in _parts(self._state)]
        return sum(owned)

    def lazy_bytes(self) -> int:
        self._assert_open()
        return 0 if self._lazy is None else self._lazy.nbytes

    def set_materialize_hook(self, hook: MaterializeHook | None) -> None:
        self._hook = hook

    def own(self) -> None:
        """Compute the state that it names, of which the hook hears once.

        What fails in it leaves the snapshot lazy, and known.
        """
        if self._lazy is None:
            return
        state = self._lazy.computed()
        self._lazy.among.forget(self)
        self._state, self._lazy = state, None
        assert self.size() == sum(part.nbytes for part in _parts(state)), self.size()
        if self._hook is not None:
            self._hook(self.size())

    def close(self) -> None:
        assert self._open, "closed twice"
        if self._lazy is not None:
            self._lazy.among.forget(self)
        self._state = self._lazy = self._hook = None

    @property
    def _open(self) -> bool:
        return self._state is not None or self._lazy is not None

    def _assert_open(self) -> None:
        assert self._open, "used after close"


class LazyStates:
    """The snapshots that still name a place of one cache.

    Law: what they name has not been overwritten. The cache keeps it by calling a `save` before.
    """

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self._open: dict[RecurrentSnapshot, Place] = {}  # in the order of issue

    def issue(self, place: Place, count: int, start: int, end: int) -> RecurrentSnapshot:
        made = RecurrentSnapshot(start, end, lazy=LazyState(self, place, count))
        self._open[made] = place
        return made

    def forget(self, snapshot: RecurrentSnapshot) -> None:
        del self._open[snapshot]

    def save(self, place: Place) -> None:
        self._save(snapshot for snapshot, named in self._open.items() if named is place)

    def save_all(self) -> None:
        self._save(self._open)

    def _save(self, snapshots: Iterable[RecurrentSnapshot]) -> None:
        if self._open:
            for snapshot in list(snapshots):
                snapshot.own()


@dataclass(frozen=True, slots=True)
class LazyState:
    """What a lazy snapshot names: `count` of the inputs at a place."""

    among: LazyStates
    place: Place
    count: int

    def computed(self) -> RecurrentState:
        return self.place.folded(self.count, self.among.fold)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in _parts(self.place.state()))


def held(snapshot: Snapshot) -> RecurrentSnapshot:
    assert isinstance(snapshot, RecurrentSnapshot), "a snapshot goes back to the kind that took it"
    return snapshot


def _parts(state: RecurrentState) -> tuple[Tensor, Tensor]:
    return state.conv, state.delta
