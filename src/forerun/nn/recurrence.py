"""A gated-delta layer between its projections: conv, normalised queries and keys, scan."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import cast

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.contract.cache import LayerCache, RecurrentLayerCache
from forerun.contract.recurrence import (
    RecurrentInputs,
    RecurrentState,
    RecurrentUpdate,
    RecurrentWrite,
)
from forerun.kernels.causal_conv.reference import ConvFilter, causal_conv
from forerun.kernels.gated_delta.chunked import gated_delta
from forerun.kernels.gated_delta.reference import DeltaRows

_NORM_EPS = 1e-6  # added to the sum of squares, not to their mean (QWN-9)


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


@dataclass(frozen=True, slots=True)
class _Forward:
    outputs: Tensor
    states: tuple[RecurrentState, ...]  # one a split and the end's
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
        if cache is None:
            return self._forward(self._zeros(rows), (), (rows, decay, beta), batch).outputs
        if batch.writes is not None:
            write = batch.writes[self.layer]
            assert isinstance(write, RecurrentWrite), f"nobody began a write for layer {self.layer}"
            made = self._forward(write.before, write.splits, (rows, decay, beta), batch)
            _fill(write.update, made)
            return made.outputs
        kept = cast(RecurrentLayerCache, cache)  # to check the protocol costs more than a write
        assert len(set(batch.lengths)) == 1, f"rows of one cache advance in step: {batch.lengths}"
        before = kept.get(batch.rows, rows.dtype)
        splits = kept.snapshot_splits(batch.lengths[0])
        made = self._forward(before, splits, (rows, decay, beta), batch)
        *inner, end = made.states
        kept.put(RecurrentUpdate(end, batch.lengths, tuple(inner)))
        return made.outputs

    def _zeros(self, rows: Tensor) -> RecurrentState:
        heads = self.heads
        return RecurrentState(
            rows.new_zeros(rows.shape[0], self._taps.tail, rows.shape[2]),
            torch.zeros(
                (rows.shape[0], heads.value_heads, heads.value_dim, heads.key_dim),
                dtype=torch.float32,
                device=rows.device,
            ),
        )

    def _forward(
        self,
        before: RecurrentState,
        splits: Sequence[int],
        given: tuple[Tensor, Tensor, Tensor],
        batch: Batch,
    ) -> _Forward:
        """Reads `before` and writes nothing, so that a failure leaves the layer's state alone."""
        raw, decay, beta = given
        lengths = None if batch.full else batch.valid_lengths
        conv = causal_conv(before.conv, raw, self._taps, boundaries=splits, lengths=lengths)
        rows = self._delta_rows(conv.rows, decay, beta)
        scan = gated_delta(rows, before.delta, boundaries=splits, lengths=lengths)
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
            _unit(queries.reshape(by_key)) * heads.key_dim**-0.5,
            _unit(keys.reshape(by_key)),
            values.reshape(*rows.shape[:2], heads.value_heads, heads.value_dim),
            decay,
            beta,
        )


def _unit(rows: Tensor) -> Tensor:
    wide = rows.float()
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + _NORM_EPS)


def _fill(update: RecurrentUpdate, made: _Forward) -> None:
    """Leave the results where a driver wants them; its `end` may be the state just read."""
    *inner, end = made.states
    _copy_state(end, update.end)
    if update.splits:
        for state, due in zip(inner, update.splits, strict=True):
            _copy_state(state, due)
    if update.inputs is not None:
        for field in fields(RecurrentInputs):
            due_rows: Tensor = getattr(update.inputs, field.name)
            due_rows.copy_(getattr(made.inputs, field.name))


def _copy_state(state: RecurrentState, to: RecurrentState) -> None:
    to.conv.copy_(state.conv)
    to.delta.copy_(state.delta)
