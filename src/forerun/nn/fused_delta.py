"""A gated-delta layer among those that run in one call: its cache's states around the kernel."""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.contract.cache import LayerCache, RecurrentLayerCache
from forerun.contract.recurrence import (
    Fold,
    RecurrentInputs,
    RecurrentState,
    RecurrentUpdate,
    RecurrentWrite,
)
from forerun.kernels.select import DeltaLayer
from forerun.nn.fused_layer import AnyWrite, RunRow
from forerun.nn.layer_weights import DeltaWeights
from forerun.nn.recurrence import state_shape


class FusedDelta:
    """One layer; see `FusedLayer`."""

    def __init__(self, kernel: DeltaLayer, weights: DeltaWeights, fold: Fold) -> None:
        """fold: to the last bit as the kernel takes steps"""
        self._kernel, self._fold = kernel, fold
        self._shape = state_shape(weights.heads, weights.conv_weight)

    @property
    def nbytes(self) -> int:
        return self._kernel.nbytes

    def begin(self, cache: LayerCache | None, batch: Batch) -> RecurrentWrite:
        return _states(cache).begin_write(batch.lengths[0])

    def end(self, cache: LayerCache | None, write: AnyWrite, tokens: int) -> None:
        update = _begun(write).update
        _states(cache).put(update if update.lengths[0] == tokens else update.of(tokens))

    def place(self, batch: Batch, write: AnyWrite) -> bool:
        begun = _begun(write)
        if begun.splits and begun.splits[-1] >= batch.lengths[0]:
            return False
        self._kernel.place(begun)
        return True

    def within_batch(self, batch: Batch, run: RunRow) -> None:
        update = RecurrentUpdate(None, (batch.width,))
        for row, length in enumerate(batch.lengths):
            if length:
                before = self._shape.zeros(torch.float32)
                self._kernel.place(RecurrentWrite(before, None, None, (), update))
                run(row, length)

    def written(self, batch: Batch, write: AnyWrite, run: RunRow) -> None:
        """Each row by itself; where it has ended before a split, its state stands still."""
        for row, length in enumerate(batch.lengths):
            part = _of_row(_begun(write), row)
            if length:
                self._kernel.place(_within(part, length))
                run(row, length)
            else:
                self._stand(part)
            end = part.update.end
            if end is None:
                continue
            for split, state in zip(part.splits, part.update.splits, strict=True):
                if split >= length:
                    _copy(end, state)

    def _stand(self, write: RecurrentWrite) -> None:
        """What no new rows make of a state."""
        before, pending, end = write.before, write.pending, write.update.end
        delta = before.delta
        if pending is not None:
            delta = self._fold(delta, pending, pending.keys.shape[1])
        if write.folded is not None:
            write.folded.copy_(delta)
        if end is not None:
            _copy(RecurrentState(before.conv, delta), end)


def _states(cache: LayerCache | None) -> RecurrentLayerCache:
    return cast(RecurrentLayerCache, cache)  # to check the protocol costs more than a write


def _begun(write: AnyWrite) -> RecurrentWrite:
    assert isinstance(write, RecurrentWrite), "nobody has begun a write for this layer"
    return write


def _copy(state: RecurrentState, to: RecurrentState) -> None:
    to.conv.copy_(state.conv)
    to.delta.copy_(state.delta)


def _within(write: RecurrentWrite, length: int) -> RecurrentWrite:
    """Without the splits that a row of this length does not reach, or ends at."""
    update = write.update
    inside = sum(split < length for split in write.splits)
    states = replace(update, splits=update.splits[:inside])
    return replace(write, splits=write.splits[:inside], update=states)


def _of_row(write: RecurrentWrite, row: int) -> RecurrentWrite:
    """Views of one sequence of several."""
    update = write.update
    own = RecurrentUpdate(
        None if update.end is None else _state_of_row(update.end, row),
        update.lengths[row : row + 1],
        tuple(_state_of_row(state, row) for state in update.splits),
        None if update.inputs is None else _inputs_of_row(update.inputs, row),
    )
    return RecurrentWrite(
        _state_of_row(write.before, row),
        None if write.pending is None else _inputs_of_row(write.pending, row),
        None if write.folded is None else _tensor_of_row(write.folded, row),
        write.splits,
        own,
    )


def _state_of_row(state: RecurrentState, row: int) -> RecurrentState:
    return RecurrentState(_tensor_of_row(state.conv, row), _tensor_of_row(state.delta, row))


def _inputs_of_row(inputs: RecurrentInputs, row: int) -> RecurrentInputs:
    parts = (inputs.conv, inputs.keys, inputs.values, inputs.decay, inputs.beta)
    return RecurrentInputs(*(_tensor_of_row(part, row) for part in parts))


def _tensor_of_row(part: Tensor, row: int) -> Tensor:
    return part[row : row + 1]
