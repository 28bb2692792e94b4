"""Decoder layers that run in one call (KER-1): the caches and batches around the kernel."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.contract.cache import LayerCache
from forerun.contract.recurrence import Fold
from forerun.kernels.layer_operands import LayerOperands
from forerun.kernels.select import (
    AttentionLayer,
    DeltaLayer,
    KernelChoice,
    NativeLayers,
    decoder_layers,
    refused_layers,
    serves_layers,
)
from forerun.nn.fused_attention import FusedAttention
from forerun.nn.fused_delta import FusedDelta
from forerun.nn.fused_layer import AnyWrite, FusedLayer
from forerun.nn.layer_operands import layer_operands
from forerun.nn.layer_weights import AttentionWeights, DeltaWeights, LayerWeights
from forerun.nn.rope import Rope

Turns = Sequence[Sequence[tuple[int, int]]]  # of each rope and row: `Rope.addresses`
_Begun = Iterator[tuple[FusedLayer, LayerCache | None, AnyWrite]]  # writes, until they have ended
Streams = dict[int, Tensor]  # the residual stream as it enters a layer, by index of the layer


def fused_layers(
    layers: list[LayerWeights], dtype: torch.dtype, kernels: KernelChoice
) -> "FusedLayers | None":
    """All layers as one call, whose weights it takes, or None: the reason is in the log.

    layers  empty afterwards, and so are the lists of their mixers (05 LOD-4)
    dtype   of keys and values
    """
    operands: list[LayerOperands] = []
    for layer in layers:
        found = layer_operands(layer)
        if isinstance(found, str):
            refused_layers(found)
            return None
        operands.append(found)
    if not serves_layers(operands, dtype, kernels):
        return None
    mixers = [layer.mixer for layer in layers]
    layers.clear()
    for mixer in mixers:
        mixer.clear()
    return FusedLayers(decoder_layers(operands, dtype, kernels), mixers, dtype)


class FusedLayers:
    """All layers of a model over a residual stream in float32, which is changed in place."""

    def __init__(
        self,
        kernels: NativeLayers,
        mixers: Sequence[AttentionWeights | DeltaWeights],
        dtype: torch.dtype,
    ) -> None:
        self._kernels = kernels
        self.own_threads, self.stream = True, torch.float32
        self.fold: Fold = kernels.fold  # of states, as the layers take steps
        self._layers = [
            self._fused(kernel, mixer, dtype)
            for kernel, mixer in zip(kernels.layers, mixers, strict=True)
        ]

    def __call__(
        self,
        x: Tensor,
        batch: Batch,
        ropes: Sequence[Rope],
        caches: Sequence[LayerCache | None] | None,
        *,
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
        writes: list[AnyWrite] = []
        begun = zip(self._layers, caches, writes, strict=False)
        with _undone(begun):
            for layer, cache in zip(self._layers, caches, strict=True):
                writes.append(layer.begin(cache, batch))
            streams = self._into(rows, batch, writes, taps)
        _end(begun, batch.lengths[0])
        return x, streams

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self._layers)

    def _into(
        self, rows: "_Rows", batch: Batch, writes: Sequence[AnyWrite], taps: Sequence[int]
    ) -> Streams:
        """Everything is said beforehand where it can be, and then the layers run at a stretch."""
        if batch.rows > 1 or not batch.lengths[0] or not self._placed(batch, writes):
            return self._one_by_one(rows, batch, writes, taps)
        self._enter(rows, 0, batch.lengths[0])
        if not taps:
            self._kernels.run(0, len(self._layers))
            return {}
        streams: Streams = {}
        done = 0
        for tap in (*sorted(set(taps)), len(self._layers)):
            if tap > done:
                self._kernels.run(done, tap)
                done = tap
            if tap < len(self._layers):
                streams[tap] = rows.stream.clone()
        return streams

    def _enter(self, rows: "_Rows", row: int, length: int) -> None:
        tokens = None if rows.tokens is None else rows.tokens[row]
        turns = [each[row] for each in rows.turns]
        self._kernels.enter(rows.stream[row], length, turns, tokens)

    def _placed(self, batch: Batch, writes: Sequence[AnyWrite]) -> bool:
        """Whether all layers read and write where caches want it, for a batch of one row."""
        layers = zip(self._layers, writes, strict=True)
        return all(layer.place(batch, write) for layer, write in layers)

    def _fused(
        self,
        kernel: AttentionLayer | DeltaLayer,
        mixer: AttentionWeights | DeltaWeights,
        dtype: torch.dtype,
    ) -> FusedLayer:
        if isinstance(kernel, DeltaLayer):
            assert isinstance(mixer, DeltaWeights), "it was made of them"
            return FusedDelta(kernel, mixer, self.fold)
        assert isinstance(mixer, AttentionWeights), "it was made of them"
        return FusedAttention(kernel, mixer, dtype)

    def _one_by_one(
        self,
        rows: "_Rows",
        batch: Batch,
        writes: Sequence[AnyWrite] | None,
        taps: Sequence[int],
    ) -> Streams:
        streams: Streams = {}
        for index, layer in enumerate(self._layers):
            if index in taps:
                streams[index] = rows.stream.clone()

            def run(row: int, length: int, index: int = index) -> None:
                self._enter(rows, row, length)
                self._kernels.run(index, index + 1)

            if writes is None:
                layer.within_batch(batch, run)
            else:
                layer.written(batch, writes[index], run)
        return streams


def _end(begun: _Begun, tokens: int) -> None:
    """Every write, each once. After a failure those that are left are undone: a cache with a
    write open would refuse even to be freed."""
    with _undone(begun):
        for layer, cache, write in begun:
            layer.end(cache, write, tokens)


@contextmanager
def _undone(begun: _Begun) -> Iterator[None]:
    """What fails within is raised once the writes that have not ended are undone."""
    try:
        yield
    except BaseException as first:  # noqa: BLE001 - raised again, whatever fails in between
        try:
            _end(begun, 0)
        finally:
            raise first


@dataclass(frozen=True, slots=True)
class _Rows:
    """What passes through the layers in one forward."""

    stream: Tensor  # [B, L, hidden] float32, changed in place
    tokens: Tensor | None
    turns: Turns
