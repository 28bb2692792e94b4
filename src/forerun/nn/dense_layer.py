"""Decoder layers that run as one call each (KER-1): the caches and batches around the kernel.

A layer's weights are gathered first, as they are stored. Either the kernel takes those of all
layers, or blocks of separate operations are made of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.contract.cache import AttentionCache, LayerCache
from forerun.contract.history import Write
from forerun.kernels.operands import BiasedLinear, LayerOperands
from forerun.kernels.select import (
    KernelChoice,
    NativeLayer,
    NativeLayers,
    Place,
    dense_layers,
    refused_layers,
)
from forerun.nn.linear import LinearWeights
from forerun.nn.norm import RMSNorm
from forerun.nn.rope import Rope, RopeTables
from forerun.quant.packed import PackedWeight

Pair = tuple[Tensor, Tensor]  # cosines and sines [B, L, head_dim / 2], or keys and values


Streams = dict[int, Tensor]  # the residual stream as it enters a layer, by index of the layer


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

    @property
    def linears(self) -> Sequence[LinearWeights]:
        return (*self.qkv, *self.output, *self.gate_up, *self.down)


def fused_layers(
    layers: Sequence[LayerWeights], dtype: torch.dtype, kernels: KernelChoice
) -> "FusedLayers | None":
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
    return None if made is None else FusedLayers(made, layers, dtype)


class FusedLayers:
    """All layers of a model over a residual stream in float32, which is changed in place."""

    def __init__(
        self, kernels: NativeLayers, layers: Sequence[LayerWeights], dtype: torch.dtype
    ) -> None:
        self._kernels = kernels
        self.own_threads, self.stream = True, torch.float32
        self.layers = [
            FusedLayer(kernel, layer, dtype)
            for kernel, layer in zip(kernels.layers, layers, strict=True)
        ]

    def __call__(
        self,
        x: Tensor,
        batch: Batch,
        ropes: Sequence[Rope],
        caches: Sequence[LayerCache | None] | None,
        taps: Sequence[int] = (),
    ) -> tuple[Tensor, Streams]:
        """`x` [B, L, hidden] float32, contiguous: changed, and returned."""
        halves = [_halves(rope.of_batch(batch, self.stream)) for rope in ropes]
        turns = [halves[layer.rope] for layer in self.layers]
        if caches is None:
            return x, self._one_by_one(x, batch, turns, None, taps)
        if batch.writes is not None:
            return x, self._into(x, batch, turns, batch.writes, taps)
        assert len(set(batch.lengths)) == 1, f"rows of a cache advance in step: {batch.lengths}"
        # as in `nn.attention`, checked by no protocol
        begun: list[AttentionCache] = []
        writes: list[Write] = []
        written = 0  # unless all goes well
        try:
            for cache in cast(Sequence[AttentionCache], caches):
                writes.append(cache.begin_write(batch.width))
                begun.append(cache)
            streams = self._into(x, batch, turns, writes, taps)
            written = batch.lengths[0]
        finally:
            for cache in begun:
                cache.end_write(written)
        return x, streams

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def _into(
        self,
        x: Tensor,
        batch: Batch,
        turns: Sequence[Pair],
        writes: Sequence[object],
        taps: Sequence[int],
    ) -> Streams:
        """Everything is said beforehand where it can be, and then the layers run at a stretch."""
        if batch.rows > 1 or not batch.lengths[0] or any(map(_scattered, writes)):
            return self._one_by_one(x, batch, turns, writes, taps)
        for layer, turn, write in zip(self.layers, turns, writes, strict=True):
            layer.prepare(x, batch, turn, _begun(write))
        streams: Streams = {}
        done = 0
        for tap in (*sorted(set(taps)), len(self.layers)):
            if tap > done:
                self._kernels.run(done, tap)
                done = tap
            if tap < len(self.layers):
                streams[tap] = x.clone()
        return streams

    def _one_by_one(
        self,
        x: Tensor,
        batch: Batch,
        turns: Sequence[Pair],
        writes: Sequence[object] | None,
        taps: Sequence[int],
    ) -> Streams:
        streams: Streams = {}
        for index, (layer, turn) in enumerate(zip(self.layers, turns, strict=True)):
            if index in taps:
                streams[index] = x.clone()
            run = partial(self._kernels.run, index, index + 1)
            if writes is None:
                layer.within_batch(x, batch, turn, run)
            else:
                layer.written(x, batch, turn, _begun(writes[index]), run)
        return streams


class FusedLayer:
    """One of them: what its kernel is told of a batch."""

    def __init__(self, kernel: NativeLayer, layer: LayerWeights, dtype: torch.dtype) -> None:
        self.heads, self.window, self.rope = layer.heads, layer.form.window, layer.form.rope
        self._kernel, self._dtype = kernel, dtype

    @property
    def nbytes(self) -> int:
        return self._kernel.nbytes

    def prepare(self, x: Tensor, batch: Batch, turns: Pair, write: Write) -> None:
        """The only row of the batch is to be written where no index says otherwise."""
        history, length = write.history, batch.lengths[0]
        live = history.live - (batch.width - length)  # without padding
        at = Place(length, write.first_index, live, history.oldest)
        self._kernel.prepare(x, turns, (write.keys, write.values), at)

    def within_batch(self, x: Tensor, batch: Batch, turns: Pair, run: Callable[[], None]) -> None:
        """Each row alone, its keys and values forgotten at once (CON-9)."""
        rows = self._empty(batch.width)
        for row, (start, length) in enumerate(zip(batch.starts, batch.lengths, strict=True)):
            if length:
                at = Place(length, 0, length, start)
                self._kernel.prepare(x[row], _row(turns, row), rows, at)
                run()

    def written(
        self, x: Tensor, batch: Batch, turns: Pair, write: Write, run: Callable[[], None]
    ) -> None:
        """What each row sees is copied together, and its new rows are stored where they belong."""
        history, width = write.history, batch.width
        assert history.positions is None, "rows of this history are not in the order of positions"
        lives = [history.live - (width - length) for length in batch.lengths]
        if history.lengths is not None:
            lives = history.lengths.tolist()
        parts = []
        for row, (live, length) in enumerate(zip(lives, batch.lengths, strict=True)):
            old = live - length
            keys, values = self._empty(old + width)
            keys[:, :old] = history.keys[row, :, :old]
            values[:, :old] = history.values[row, :, :old]
            if length:
                at = Place(length, old, live, history.oldest)
                self._kernel.prepare(x[row], _row(turns, row), (keys, values), at)
                run()
            parts.append((keys[:, old:], values[:, old:]))
        new_keys, new_values = (torch.stack(rows) for rows in zip(*parts, strict=True))
        write.store(new_keys, new_values)

    def _empty(self, count: int) -> Pair:
        shape = (self.heads.kv, count, self.heads.dim)
        # zeros: rows of padding are stored too, and shall hold numbers
        return torch.zeros(shape, dtype=self._dtype), torch.zeros(shape, dtype=self._dtype)


def _begun(write: object) -> Write:
    assert isinstance(write, Write), "nobody has begun a write for this layer"
    return write


def _scattered(write: object) -> bool:
    """Whether new rows do not simply follow the history in one buffer."""
    begun = _begun(write)
    history = begun.history
    return not (begun.index is None and history.lengths is None and history.positions is None)


def _halves(tables: RopeTables) -> Pair:
    """What the kernel reads of a forward's tables: the other halves repeat them."""
    half = tables.cos.shape[-1] // 2
    cosines, sines = tables.cos[..., 0, :half], tables.sin[..., 0, half:]
    return cosines.contiguous(), sines.contiguous()


def _row(pair: Pair, row: int) -> Pair:
    """That row of both. Of a single row the whole: views take time, and the memory is the same."""
    one, other = pair
    return pair if one.shape[0] == 1 else (one[row], other[row])


def _operands(layer: LayerWeights) -> LayerOperands | None:
    """None where a weight is not quantised."""
    picked = layer.linears
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
