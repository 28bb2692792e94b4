"""Where a recurrent layer's state is kept, and what a round fed it from there (spec 01 REC-5)."""

from functools import cached_property

import torch
from torch import Tensor

from forerun.contract.model import WIDEST_ROUND
from forerun.contract.recurrence import Fold, RecurrentInputs, RecurrentState, StateShape


def compact(state: RecurrentState) -> RecurrentState:
    """A copy in storage of its own, no larger than the state (CNV-3)."""
    return RecurrentState(_cloned(state.conv), _cloned(state.delta))


class Place:
    """Room for a state and for the inputs of one round from there on.

    The conv tail and the round's conv rows lie one behind the other, so that the tail after any
    number of them is a view. Views are made once: a steady decode makes none.
    """

    def __init__(self, shape: StateShape, dtype: torch.dtype) -> None:
        """All uninitialised."""
        self._shape = shape
        batch, tail, heads = shape.batch, shape.tail, shape.value_heads
        rows = (batch, tail + WIDEST_ROUND, shape.channels)
        self._conv = torch.empty(rows, dtype=dtype, device=shape.device)
        self._delta = self._float32(batch, heads, shape.value_dim, shape.key_dim)
        self._states: dict[int, RecurrentState] = {}
        self._inputs: dict[int, RecurrentInputs] = {}

    def state(self, count: int = 0) -> RecurrentState:
        """The conv tail after `count` of the inputs, and the delta state, which lacks them."""
        found = self._states.get(count)
        if found is None:
            tail = self._conv[:, count : count + self._shape.tail]
            found = self._states[count] = RecurrentState(tail, self._delta)
        return found

    def inputs(self, count: int = WIDEST_ROUND) -> RecurrentInputs:
        """The first `count` columns."""
        found = self._inputs.get(count)
        if found is None:
            keys, values, decay, beta = (part[:, :count] for part in self._fed)
            conv = self._conv[:, self._shape.tail : self._shape.tail + count]
            found = self._inputs[count] = RecurrentInputs(conv, keys, values, decay, beta)
        return found

    def folded(self, count: int, fold: Fold) -> RecurrentState:
        """The state after `count` of the inputs, in storage of its own."""
        held = self.state(count)
        if not count:
            return compact(held)
        return RecurrentState(_cloned(held.conv), fold(held.delta, self.inputs(), count))

    def take(self, state: RecurrentState) -> None:
        """Copy a state, of this shape and these dtypes, in."""
        own = self.state()
        parts = ((own.conv, state.conv), (own.delta, state.delta))
        for kept, new in parts:
            assert (new.shape, new.dtype) == (kept.shape, kept.dtype), (new.shape, new.dtype)
        for kept, new in parts:
            kept.copy_(new)

    def nbytes(self) -> int:
        """Of the state, and of the inputs once there has been a round."""
        state = self.state()
        if not self._inputs:
            return state.conv.nbytes + state.delta.nbytes
        return self._conv.nbytes + sum(part.nbytes for part in (self._delta, *self._fed))

    @cached_property
    def _fed(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keys, values, decay and beta: there from the first round on."""
        shape = self._shape
        columns = (shape.batch, WIDEST_ROUND)
        return (
            self._float32(*columns, shape.key_heads, shape.key_dim),
            self._float32(*columns, shape.value_heads, shape.value_dim),
            self._float32(*columns, shape.value_heads),
            self._float32(*columns, shape.value_heads),
        )

    def _float32(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self._shape.device)


def _cloned(part: Tensor) -> Tensor:
    return part.clone(memory_format=torch.contiguous_format)
