"""A gated-delta layer between its projections: conv, normalised queries and keys, scan."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.contract.cache import LayerCache, RecurrentLayerCache
from forerun.contract.recurrence import (
    RecurrentInputs,
    RecurrentState,
    RecurrentWrite,
    StateShape,
)
from forerun.kernels.causal_conv.reference import ConvFilter, causal_conv
from forerun.kernels.gated_delta.chunked import gated_delta
from forerun.kernels.gated_delta.reference import DeltaRows, reference_fold, unit

_Given = tuple[Tensor, Tensor, Tensor]  # raw rows, decay, beta


@dataclass(frozen=True, slots=True)
class DeltaHeads:
    """Heads of a layer; value heads are a multiple of key heads."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @property
    def widths(self) -> list[int]:
        """Channels of the queries, the keys and the values, in the order of a row."""
        keys = self.key_heads * self.key_dim
        return [keys, keys, self.value_heads * self.value_dim]


def state_shape(
    heads: DeltaHeads, conv_weight: Tensor, *, batch: int = 1, dtype: torch.dtype | None = None
) -> StateShape:
    """What a cache of such a layer keeps, of `batch` sequences that advance in step.

    conv_weight  [channels, taps], on the device that the state is on
    dtype        of the activations; None: the first forward tells
    """
    channels, taps = conv_weight.shape
    return StateShape(
        tail=taps - 1,
        channels=channels,
        key_heads=heads.key_heads,
        value_heads=heads.value_heads,
        value_dim=heads.value_dim,
        key_dim=heads.key_dim,
        device=conv_weight.device,
        batch=batch,
        dtype=dtype,
    )


@dataclass(frozen=True, slots=True)
class _Forward:
    outputs: Tensor
    states: tuple[RecurrentState, ...]  # one a boundary and the end's
    inputs: RecurrentInputs


class GatedDelta:
    """One layer's recurrence. It keeps nothing: its state is the cache's, or zero without one."""

    def __init__(
        self, layer: int, conv_weight: Tensor, conv_bias: Tensor | None, heads: DeltaHeads
    ) -> None:
        """
        layer        index of the layer in `Batch.writes`
        conv_weight  [C, K], C the channels of queries, keys and values together
        """
        assert conv_weight.shape[0] == sum(heads.widths), (conv_weight.shape, heads)
        self.layer, self.heads = layer, heads
        self._taps = ConvFilter(conv_weight, conv_bias, silu=True)

    @property
    def nbytes(self) -> int:
        """Bytes of parameters held."""
        bias = self._taps.bias
        return self._taps.weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(
        self,
        rows: Tensor,
        decay: Tensor,
        beta: Tensor,
        batch: Batch,
        *,
        cache: LayerCache | None,
    ) -> Tensor:
        """Fold the new rows into the state, and read it after each.

        rows     [B, L, C] raw: before conv and activation
        decay    [B, L, Hv] float32; `beta` the same
        cache    a `RecurrentLayerCache`; None: from a state of zeros (CON-9)
        returns  [B, L, Hv, Dv] in the dtype of `rows`; zeros where a row is padding
        """
        assert rows.shape[1] == batch.width, (rows.shape, batch.width)
        given = rows, decay, beta
        if cache is None:
            zeros = self.state_shape(batch.rows).zeros(rows.dtype)
            return self._forward(zeros, (), given, batch).outputs
        if batch.writes is not None:
            write = batch.writes[self.layer]
            assert isinstance(write, RecurrentWrite), f"nobody began a write for layer {self.layer}"
            return self._write(write, given, batch)
        kept = cast(RecurrentLayerCache, cache)  # to check the protocol costs more than a write
        return self._through(kept, given, batch)

    @staticmethod
    def fold(delta: Tensor, inputs: RecurrentInputs, count: int) -> Tensor:
        """See `Fold`."""
        return reference_fold(delta, inputs, count)

    def state_shape(self, batch: int = 1, dtype: torch.dtype | None = None) -> StateShape:
        """What a cache of this layer keeps; see the function."""
        return state_shape(self.heads, self._taps.weight, batch=batch, dtype=dtype)

    def _through(self, cache: RecurrentLayerCache, given: _Given, batch: Batch) -> Tensor:
        """A write of its own, which a failure undoes."""
        assert len(set(batch.lengths)) == 1, f"rows of one cache advance in step: {batch.lengths}"
        if not cache.offset:
            cache.get(batch.rows, given[0].dtype)  # nobody else tells it, and nothing is pending
        write = cache.begin_write(batch.lengths[0])
        try:
            outputs = self._write(write, given, batch)
        except BaseException:
            cache.put(write.update.of(0))
            raise
        cache.put(write.update)
        return outputs

    def _write(self, write: RecurrentWrite, given: _Given, batch: Batch) -> Tensor:
        before, update, pending = write.before, write.update, write.pending
        assert before.conv.shape[0] == batch.rows, (before.conv.shape, batch.rows)
        assert before.conv.dtype == given[0].dtype, (before.conv.dtype, given[0].dtype)
        if pending is not None:
            delta = self.fold(before.delta, pending, pending.keys.shape[1])
            before = RecurrentState(before.conv, delta)
            if write.folded is not None:
                write.folded.copy_(before.delta)
        boundaries = write.splits if update.end is not None else ()
        made = self._forward(before, boundaries, given, batch)
        if update.end is not None:
            for state, due in zip(made.states, (*update.splits, update.end), strict=True):
                due.conv.copy_(state.conv)
                due.delta.copy_(state.delta)
        if update.inputs is not None:
            _copy_inputs(made.inputs, update.inputs)
        return made.outputs

    def _forward(
        self, before: RecurrentState, boundaries: Sequence[int], given: _Given, batch: Batch
    ) -> _Forward:
        """Reads `before` and writes nothing."""
        raw, decay, beta = given
        lengths = None if batch.full else batch.valid_lengths
        conv = causal_conv(before.conv, raw, self._taps, boundaries=boundaries, lengths=lengths)
        rows = self._delta_rows(conv.rows, decay, beta)
        scan = gated_delta(rows, before.delta, boundaries=boundaries, lengths=lengths)
        states = tuple(
            RecurrentState(tail, delta) for tail, delta in zip(conv.tails, scan.states, strict=True)
        )
        inputs = RecurrentInputs(raw, rows.keys, rows.values, decay, beta)
        return _Forward(scan.outputs, states, inputs)

    def _delta_rows(self, rows: Tensor, decay: Tensor, beta: Tensor) -> DeltaRows:
        heads = self.heads
        queries, keys, values = torch.split(rows, heads.widths, dim=-1)
        by_key = (*rows.shape[:2], heads.key_heads, heads.key_dim)
        return DeltaRows(
            unit(queries.reshape(by_key)) * heads.key_dim**-0.5,
            unit(keys.reshape(by_key)),
            values.reshape(*rows.shape[:2], heads.value_heads, heads.value_dim),
            decay,
            beta,
        )


def _copy_inputs(made: RecurrentInputs, due: RecurrentInputs) -> None:
    """As many columns as are due: those after them are padding."""
    pairs = (
        (made.conv, due.conv),
        (made.keys, due.keys),
        (made.values, due.values),
        (made.decay, due.decay),
        (made.beta, due.beta),
    )
    for found, wanted in pairs:
        wanted.copy_(found[:, : wanted.shape[1]])
