"""Decoder layers that run as one call each (KER-1): the caches and batches around the kernel.

A layer's weights are gathered first, as they are stored. Either the kernel takes those of all
layers, or blocks of separate operations are made of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.contract.cache import AttentionCache, LayerCache
from forerun.contract.history import Write
from forerun.kernels.operands import BiasedLinear, LayerOperands
from forerun.kernels.select import KernelChoice, NativeLayer, Place, dense_layers, refused_layers
from forerun.nn.linear import LinearWeights
from forerun.nn.norm import RMSNorm
from forerun.nn.rope import RopeTables
from forerun.quant.packed import PackedWeight

Pair = tuple[Tensor, Tensor]  # cosines and sines [B, L, head_dim / 2], or keys and values


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of an attention layer; `query / kv` query heads share a key head."""

    query: int
    kv: int
    dim: int


@dataclass(frozen=True, slots=True)
class LayerForm:
    """How the layers of a family differ."""

    scale: float  # of attention scores
    activation: str
    biased: bool = False  # attention has biases, and their absence is an error
    mlp_biased: bool = False
    head_norms: bool = False  # of each query and key head (QW3-1, GM3-4)
    outer_norms: bool = False  # of what attention and MLP add to the stream (GM3-5)
    window: int | None = None
    rope: int = 0  # which of the model's rotary tables turns it


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """The norms of one layer. `heads`: queries and keys as one table, a row a head."""

    input: RMSNorm
    mlp: RMSNorm
    attended: RMSNorm | None
    output: RMSNorm | None
    heads: RMSNorm | None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer as picked from a checkpoint. Whoever makes something of a list empties it."""

    index: int
    form: LayerForm
    heads: Heads
    epsilon: float
    norms: LayerNorms
    qkv: list[LinearWeights]
    output: list[LinearWeights]
    gate_up: list[LinearWeights]
    down: list[LinearWeights]


def fused_layers(
    layers: Sequence[LayerWeights], dtype: torch.dtype, kernels: KernelChoice
) -> "list[FusedLayer] | None":
    """All layers as one call each, or None: the reason is in the log.

    dtype  of keys and values
    """
    operands: list[LayerOperands] = []
    for layer in layers:
        found = _operands(layer)
        if found is None:
            refused_layers("not all weights are quantised")
            return None
        operands.append(found)
    made = dense_layers(operands, dtype, kernels)
    if made is None:
        return None
    return [FusedLayer(kernel, layer, dtype) for kernel, layer in zip(made, layers, strict=True)]


class FusedLayer:
    """A block whose residual stream is float32, and changed in place."""

    def __init__(self, kernel: NativeLayer, layer: LayerWeights, dtype: torch.dtype) -> None:
        self.heads, self.window = layer.heads, layer.form.window
        self._kernel, self._dtype = kernel, dtype
        self._layer, self._rope = layer.index, layer.form.rope

    def __call__(
        self, x: Tensor, batch: Batch, tables: Sequence[RopeTables], cache: LayerCache | None
    ) -> Tensor:
        """[B, L, hidden] float32, contiguous: the same tensor, changed."""
        turns = self._turns(tables[self._rope], batch)
        if cache is None:
            self._within_batch(x, batch, turns)
        elif batch.writes is not None:
            write = batch.writes[self._layer]
            assert isinstance(write, Write), f"nobody has begun a write for layer {self._layer}"
            self._written(x, batch, turns, write)
        else:
            assert len(set(batch.lengths)) == 1, f"rows of a cache advance in step: {batch.lengths}"
            rows = cast(AttentionCache, cache)  # as in `nn.attention`, checked by no protocol
            write = rows.begin_write(batch.width)
            written = 0  # unless all goes well
            try:
                self._written(x, batch, turns, write)
                written = batch.lengths[0]
            finally:
                rows.end_write(written)
        return x

    @property
    def nbytes(self) -> int:
        return self._kernel.nbytes

    def _turns(self, tables: RopeTables, batch: Batch) -> Pair:
        """What the kernel reads of a forward's tables: made once, shared by all layers."""
        key = ("turns", id(tables))  # `tables` lives in the memo too
        found = batch.memo.get(key)
        if found is None:
            half = self.heads.dim // 2
            cosines, sines = tables.cos[..., 0, :half], tables.sin[..., 0, half:]
            found = batch.memo[key] = (cosines.contiguous(), sines.contiguous())
        return cast(Pair, found)

    def _within_batch(self, x: Tensor, batch: Batch, turns: Pair) -> None:
        """Each row alone, its keys and values forgotten at once (CON-9)."""
        rows = self._empty(batch.width)
        for row, (start, length) in enumerate(zip(batch.starts, batch.lengths, strict=True)):
            self._run(x, turns, row, rows, Place(length, 0, length, start))

    def _written(self, x: Tensor, batch: Batch, turns: Pair, write: Write) -> None:
        if write.index is not None or write.history.lengths is not None:
            self._scattered(x, batch, turns, write)
            return
        history, width = write.history, batch.width
        assert history.positions is None, "rows of this history are not in the order of positions"
        rows = (write.keys, write.values)
        for row, length in enumerate(batch.lengths):
            live = history.live - (width - length)  # without padding
            at = Place(length, write.first_index, live, history.oldest)
            self._run(x, turns, row, _row(rows, row), at)

    def _scattered(self, x: Tensor, batch: Batch, turns: Pair, write: Write) -> None:
        """Rows go to indices: what each row sees is copied together, its new rows are stored."""
        history, width = write.history, batch.width
        assert history.positions is None, "rows of this history are not in the order of positions"
        lengths = [history.live] * batch.rows
        if history.lengths is not None:
            lengths = history.lengths.tolist()
        parts = []
        for row, (live, length) in enumerate(zip(lengths, batch.lengths, strict=True)):
            old = live - length
            keys, values = self._empty(old + width)
            keys[:, :old] = history.keys[row, :, :old]
            values[:, :old] = history.values[row, :, :old]
            self._run(x, turns, row, (keys, values), Place(length, old, live, history.oldest))
            parts.append((keys[:, old:], values[:, old:]))
        new_keys, new_values = (torch.stack(rows) for rows in zip(*parts, strict=True))
        write.store(new_keys, new_values)

    def _run(self, x: Tensor, turns: Pair, row: int, rows: Pair, at: Place) -> None:
        if at.width:
            stream = x if x.shape[0] == 1 else x[row]
            self._kernel(stream, _row(turns, row), rows, at)

    def _empty(self, count: int) -> Pair:
        shape = (self.heads.kv, count, self.heads.dim)
        # zeros: rows of padding are stored too, and shall hold numbers
        return torch.zeros(shape, dtype=self._dtype), torch.zeros(shape, dtype=self._dtype)


def _row(pair: Pair, row: int) -> Pair:
    """That row of both. Of a single row the whole: views take time, and the memory is the same."""
    one, other = pair
    return pair if one.shape[0] == 1 else (one[row], other[row])


def _operands(layer: LayerWeights) -> LayerOperands | None:
    """None where a weight is not quantised."""
    picked = (*layer.qkv, *layer.output, *layer.gate_up, *layer.down)
    linears = [
        BiasedLinear(part.weight.folded(), part.bias)
        for part in picked
        if isinstance(part.weight, PackedWeight)
    ]
    if len(linears) < len(picked):
        return None
    *qkv, output, gate, up, down = linears
    form, heads, norms = layer.form, layer.heads, layer.norms
    query_norm = key_norm = None
    if norms.heads is not None:
        table = _factors(norms.heads)
        query_norm, key_norm = table[0], table[heads.query]
    return LayerOperands(
        qkv=qkv,
        output=output,
        gate=gate,
        up=up,
        down=down,
        input_norm=_factors(norms.input),
        mlp_norm=_factors(norms.mlp),
        attended_norm=None if norms.attended is None else _factors(norms.attended),
        output_norm=None if norms.output is None else _factors(norms.output),
        query_norm=query_norm,
        key_norm=key_norm,
        epsilon=layer.epsilon,
        heads=heads.query,
        kv_heads=heads.kv,
        head_dim=heads.dim,
        attention_scale=form.scale,
        activation=form.activation,
        window=form.window,
    )


def _factors(norm: RMSNorm) -> Tensor:
    assert norm.factors is not None, "a decoder layer has no bare norms"
    return norm.factors
