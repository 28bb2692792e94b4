"""The gated delta rule in C++: what a layer of it reads and leaves, and steps folded into a state.

Steps have the same bits whatever call, chunk or split they are in, and whoever makes them: a layer,
or a fold of what a layer kept (06 WID-4, 01 REC-5).
"""

from collections.abc import Sequence
from ctypes import c_int32, c_void_p
from typing import Protocol

import torch
from torch import Tensor

from forerun.kernels.gated_delta.reference import Inputs
from forerun.kernels.layer_operands import DeltaOperands
from forerun.kernels.native import library
from forerun.kernels.native.packed import Kept
from forerun.kernels.native.scratch import of_thread
from forerun.kernels.native.structs import (
    FrDelta,
    FrDeltaFold,
    FrDeltaRows,
    FrDeltaStep,
    FrLinear,
)

KEY_MULTIPLE, WIDEST_KEY = 16, 256
TAPS = range(2, 9)


class State(Protocol):
    """A layer's state of one sequence, float32."""

    @property
    def conv(self) -> Tensor:
        """[1, taps - 1, channels] raw"""
        ...

    @property
    def delta(self) -> Tensor:
        """[1, value_heads, value_dim, key_dim]"""
        ...


class Update(Protocol):
    """What new rows leave: a state after them and at the splits, or themselves."""

    @property
    def end(self) -> State | None: ...
    @property
    def splits(self) -> Sequence[State]: ...
    @property
    def inputs(self) -> Inputs | None: ...


class Write(Protocol):
    """A layer's part of a forward over one sequence. All tensors are contiguous."""

    @property
    def before(self) -> State:
        """Of which the delta state lacks the pending steps."""
        ...

    @property
    def pending(self) -> Inputs | None: ...
    @property
    def folded(self) -> Tensor | None:
        """Where the delta state after the pending steps is wanted."""
        ...

    @property
    def splits(self) -> Sequence[int]:
        """Ascending, inside the new rows."""
        ...

    @property
    def update(self) -> Update: ...


def why_not(mixer: DeltaOperands) -> str | None:
    """The reason that the kernel cannot serve; None if it can."""
    key, value, taps = mixer.key_dim, mixer.value_dim, mixer.conv_weight.shape[1]
    if key % KEY_MULTIPLE or key > WIDEST_KEY:
        return f"keys are {key} wide: no multiple of {KEY_MULTIPLE} up to {WIDEST_KEY}"
    if value % KEY_MULTIPLE:
        return f"values are {value} wide, which is no multiple of {KEY_MULTIPLE}"
    if taps not in TAPS:
        return f"the conv has {taps} taps instead of {TAPS.start} to {TAPS.stop - 1}"
    if len(mixer.inputs) > len(FrDelta().inputs):
        return f"queries, keys, values and gates are in {len(mixer.inputs)} parts"
    return None


class DeltaPlaces:
    """The struct of a layer's weights, and that of its part of the next run."""

    def __init__(self, mixer: DeltaOperands, kept: Kept) -> None:
        """kept: takes what the struct points to"""
        inputs = [kept.linear(part) for part in mixer.inputs]
        self.struct = FrDelta(
            inputs=(FrLinear * 2)(*inputs),
            gates=kept.address(mixer.gates),
            conv=kept.address(mixer.conv_weight.mT),
            conv_bias=kept.address(mixer.conv_bias),
            log_decay=kept.address(mixer.log_decay),
            step_bias=kept.address(mixer.step_bias),
            norm=kept.address(mixer.norm),
            taps=mixer.conv_weight.shape[1],
            key_heads=mixer.key_heads,
            value_heads=mixer.value_heads,
            key_dim=mixer.key_dim,
            value_dim=mixer.value_dim,
        )
        self.step = FrDeltaStep()

    def place(self, write: Write) -> None:
        """Say what the next run reads and fills; the caller keeps all of it alive until then."""
        step, before, pending, update = self.step, write.before, write.pending, write.update
        assert before.delta.shape[0] == 1, "a run is over one sequence"
        assert before.conv.dtype == torch.float32, before.conv.dtype
        step.tail, step.state = before.conv.data_ptr(), before.delta.data_ptr()
        step.pending_count = 0
        if pending is not None:
            step.pending, step.pending_count = _rows(pending), pending.keys.shape[1]
        folded, end, inputs = write.folded, update.end, update.inputs
        step.folded = None if folded is None else folded.data_ptr()
        step.kept = _NO_ROWS if inputs is None else _rows(inputs)
        step.end_tail = step.end_state = None
        if end is not None:
            step.end_tail, step.end_state = end.conv.data_ptr(), end.delta.data_ptr()
        step.split_count = 0
        if update.splits:
            self._split(write.splits, update.splits)

    def _split(self, splits: Sequence[int], states: Sequence[State]) -> None:
        count, step = len(states), self.step
        assert count == len(splits), (count, splits)
        pointers = c_void_p * count
        step.splits = (c_int32 * count)(*splits)
        step.split_tails = pointers(*(state.conv.data_ptr() for state in states))
        step.split_states = pointers(*(state.delta.data_ptr() for state in states))
        step.split_count = count


class NativeFold:
    """The delta state after so many of the inputs, in a tensor of its own; see `Fold`."""

    def __init__(self, threads: int) -> None:
        loaded = library.load()
        assert loaded is not None, library.why_not()
        self._library, self._team = loaded, loaded.team(threads)

    def __call__(self, state: Tensor, inputs: Inputs, count: int) -> Tensor:
        """state: [B, value_heads, value_dim, key_dim] float32, contiguous; only read"""
        if not count:
            return state.clone(memory_format=torch.contiguous_format)
        folded = torch.empty_like(state, memory_format=torch.contiguous_format)
        for row in range(state.shape[0]):
            self._fold(state[row], _row(inputs, row, count), folded[row])
        return folded

    def _fold(self, state: Tensor, rows: tuple[Tensor, ...], folded: Tensor) -> None:
        assert state.is_contiguous(), state.stride()
        keys, values, *_ = rows
        (count, key_heads, key_dim), (_, value_heads, value_dim) = keys.shape, values.shape
        struct = FrDeltaFold(
            state=state.data_ptr(),
            folded=folded.data_ptr(),
            rows=FrDeltaRows(None, *(part.data_ptr() for part in rows)),
            count=count,
            key_heads=key_heads,
            value_heads=value_heads,
            key_dim=key_dim,
            value_dim=value_dim,
        )
        assert self._library.delta_fold_supported(struct), "a layer that was fused has such states"
        scratch = of_thread()
        scratch.reserve(self._library.delta_fold_scratch(struct, self._team.threads))
        self._team.delta_fold(struct, scratch.address)


_NO_ROWS = FrDeltaRows()


def _rows(inputs: Inputs) -> FrDeltaRows:
    return FrDeltaRows(
        inputs.conv.data_ptr(),
        inputs.keys.data_ptr(),
        inputs.values.data_ptr(),
        inputs.decay.data_ptr(),
        inputs.beta.data_ptr(),
    )


def _row(inputs: Inputs, row: int, count: int) -> tuple[Tensor, ...]:
    """The first columns of one sequence: contiguous, as an unsplit buffer has them."""
    parts = (inputs.keys, inputs.values, inputs.decay, inputs.beta)
    return tuple(part[row, :count].contiguous() for part in parts)
