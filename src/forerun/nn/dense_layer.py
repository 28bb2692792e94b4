"""Decoder layers that run in one call (KER-1): the caches and batches around the kernel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.contract.cache import AttentionCache, LayerCache
from forerun.contract.history import Write
from forerun.kernels.layer_operands import AttentionOperands, LayerOperands, MlpOperands
from forerun.kernels.operands import BiasedLinear
from forerun.kernels.select import (
    KernelChoice,
    NativeLayer,
    NativeLayers,
    dense_layers,
    refused_layers,
)
from forerun.nn.layer_weights import AttentionWeights, LayerWeights, MlpWeights
from forerun.nn.norm import RMSNorm
from forerun.nn.rope import Rope
from forerun.quant.packed import PackedWeight

Turns = Sequence[Sequence[tuple[int, int]]]  # of each rope and row: `Rope.addresses`
RunRow = Callable[[int, int], None]  # a layer over a row of the batch, of that length
Streams = dict[int, Tensor]  # the residual stream as it enters a layer, by index of the layer


def fused_layers(
    layers: Sequence[LayerWeights], dtype: torch.dtype, kernels: KernelChoice
) -> "FusedLayers | None":
    """All layers as one call, or None: the reason is in the log.

    dtype  of keys and values
    """
    operands: list[LayerOperands] = []
    for layer in layers:
        found = _operands(layer)
        if isinstance(found, str):
            refused_layers(found)
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
        tokens: Tensor | None = None,
    ) -> tuple[Tensor, Streams]:
        """`x` [B, L, hidden] float32, contiguous: changed, and returned.

        tokens  the same, and only read: of stacks whose first layer has a norm for them
        """
        rows = _Rows(x, tokens, [rope.addresses(batch) for rope in ropes])
        if caches is None:
            return x, self._one_by_one(rows, batch, None, taps)
        if batch.writes is not None:
            return x, self._into(rows, batch, batch.writes, taps)
        assert len(set(batch.lengths)) == 1, f"rows of a cache advance in step: {batch.lengths}"
        # as in `nn.attention`, checked by no protocol
        begun: list[AttentionCache] = []
        writes: list[Write] = []
        width, written = batch.width, 0  # unless all goes well
        try:
            for cache in cast(Sequence[AttentionCache], caches):
                writes.append(cache.begin_write(width))
                begun.append(cache)
            streams = self._into(rows, batch, writes, taps)
            written = batch.lengths[0]
        finally:
            for cache in begun:
                cache.end_write(written)
        return x, streams

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def _into(
        self, rows: "_Rows", batch: Batch, writes: Sequence[object], taps: Sequence[int]
    ) -> Streams:
        """Everything is said beforehand where it can be, and then the layers run at a stretch."""
        if batch.rows > 1 or not batch.lengths[0] or not self._placed(batch, writes):
            return self._one_by_one(rows, batch, writes, taps)
        self._enter(rows, 0, batch.lengths[0])
        if not taps:
            self._kernels.run(0, len(self.layers))
            return {}
        streams: Streams = {}
        done = 0
        for tap in (*sorted(set(taps)), len(self.layers)):
            if tap > done:
                self._kernels.run(done, tap)
                done = tap
            if tap < len(self.layers):
                streams[tap] = rows.stream.clone()
        return streams

    def _enter(self, rows: "_Rows", row: int, length: int) -> None:
        tokens = None if rows.tokens is None else rows.tokens[row]
        turns = [each[row] for each in rows.turns]
        self._kernels.enter(rows.stream[row], length, turns, tokens)

    def _placed(self, batch: Batch, writes: Sequence[object]) -> bool:
        """Whether the new rows of all layers simply follow their histories, each in one buffer."""
        padding = batch.width - batch.lengths[0]
        for kernel, write in zip(self._kernels.layers, writes, strict=True):
            assert isinstance(write, Write), "nobody has begun a write for this layer"
            history = write.history
            if not (write.index is history.lengths is history.positions is None):
                return False
            kernel.place(
                write.keys,
                write.values,
                first_row=write.first_index,
                live=history.live - padding,
                first_position=history.oldest,
            )
        return True

    def _one_by_one(
        self,
        rows: "_Rows",
        batch: Batch,
        writes: Sequence[object] | None,
        taps: Sequence[int],
    ) -> Streams:
        streams: Streams = {}
        for index, layer in enumerate(self.layers):
            if index in taps:
                streams[index] = rows.stream.clone()

            def run(row: int, length: int, index: int = index) -> None:
                self._enter(rows, row, length)
                self._kernels.run(index, index + 1)

            if writes is None:
                layer.within_batch(batch, run)
            else:
                layer.written(batch, _begun(writes[index]), run)
        return streams


@dataclass(frozen=True, slots=True)
class _Rows:
    """What passes through the layers in one forward."""

    stream: Tensor  # [B, L, hidden] float32, changed in place
    tokens: Tensor | None
    turns: Turns


class FusedLayer:
    """One of them, where rows of a batch pass one after the other."""

    def __init__(self, kernel: NativeLayer, layer: LayerWeights, dtype: torch.dtype) -> None:
        assert isinstance(layer.mixer, AttentionWeights), "the kernel has taken it"
        self.heads, self.window = layer.mixer.heads, layer.mixer.window
        self._kernel, self._dtype = kernel, dtype

    @property
    def nbytes(self) -> int:
        return self._kernel.nbytes

    def within_batch(self, batch: Batch, run: RunRow) -> None:
        """Each row alone, its keys and values forgotten at once (CON-9)."""
        keys, values = self._empty(batch.width)
        for row, (start, length) in enumerate(zip(batch.starts, batch.lengths, strict=True)):
            if length:
                self._kernel.place(keys, values, first_row=0, live=length, first_position=start)
                run(row, length)

    def written(self, batch: Batch, write: Write, run: RunRow) -> None:
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
                first = history.oldest
                self._kernel.place(keys, values, first_row=old, live=live, first_position=first)
                run(row, length)
            parts.append((keys[:, old:], values[:, old:]))
        new_keys, new_values = (torch.stack(rows) for rows in zip(*parts, strict=True))
        write.store(new_keys, new_values)

    def _empty(self, count: int) -> tuple[Tensor, Tensor]:
        shape = (self.heads.kv, count, self.heads.dim)
        # zeros: rows of padding are stored too, and shall hold numbers
        return torch.zeros(shape, dtype=self._dtype), torch.zeros(shape, dtype=self._dtype)


def _begun(write: object) -> Write:
    assert isinstance(write, Write), "nobody has begun a write for this layer"
    return write


def _operands(layer: LayerWeights) -> LayerOperands | str:
    """Or why the kernel cannot serve."""
    mixer, mlp, norms = layer.mixer, layer.feed_forward, layer.norms
    if not isinstance(mixer, AttentionWeights) or not isinstance(mlp, MlpWeights):
        return "layers are not of attention and an MLP"
    picked = layer.linears
    linears = [
        BiasedLinear(weight, part.bias)
        for part in picked
        if isinstance(part.weight, PackedWeight) and (weight := part.weight.folded()) is not None
    ]
    if len(linears) < len(picked):
        return "not all weights are quantised, or some scale is apart from groups"
    *qkv, output, gate, up, down = linears
    return LayerOperands(
        mixer=_attention(mixer, qkv),
        output=output,
        feed_forward=MlpOperands(gate, up, down, mlp.activation),
        input_norm=_factors(norms.input),
        mlp_norm=_factors(norms.mlp),
        attended_norm=None if norms.attended is None else _factors(norms.attended),
        output_norm=None if norms.output is None else _factors(norms.output),
        epsilon=layer.epsilon,
        token_norm=None if norms.tokens is None else _factors(norms.tokens),
        normed_residual=layer.normed_residual,
    )


def _attention(mixer: AttentionWeights, linears: list[BiasedLinear]) -> AttentionOperands:
    heads = mixer.heads
    query_norm = key_norm = None
    if mixer.norm is not None:
        table = _factors(mixer.norm)
        query_norm, key_norm = table[0], table[heads.query]
    gated = len(mixer.gate)
    return AttentionOperands(
        qkv=linears[: len(linears) - gated],
        query_norm=query_norm,
        key_norm=key_norm,
        heads=heads.query,
        kv_heads=heads.kv,
        head_dim=heads.dim,
        scale=mixer.scale,
        window=mixer.window,
        rope=mixer.rope,
        rotary_dim=mixer.rotary_dim,
        gate=linears[-1] if gated else None,
    )


def _factors(norm: RMSNorm) -> Tensor:
    assert norm.factors is not None, "a decoder layer has no bare norms"
    return norm.factors
