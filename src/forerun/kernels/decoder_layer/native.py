"""Decoder layers in one C++ call: a team of threads goes through them without coming back.

The residual stream is float32. Activations of products are rounded to sixteen bits, with one scale
a row; keys and values to the dtype of their buffers. Weights are exact. A row's result depends on
nothing but the row, its position and its history: neither on the rows beside it nor on how
a history came to be, so that chunks of any size give equal bits.
"""

from collections.abc import Callable, Sequence
from ctypes import addressof, pointer, sizeof
from weakref import ref

import torch
from torch import Tensor

from forerun.kernels.experts import native as experts
from forerun.kernels.experts.native import NativeExperts
from forerun.kernels.gated_delta import native as gated_delta
from forerun.kernels.gated_delta.native import DeltaPlaces, NativeFold, Write
from forerun.kernels.layer_operands import (
    AttentionOperands,
    DeltaOperands,
    ExpertOperands,
    LayerOperands,
    MlpOperands,
)
from forerun.kernels.native import library
from forerun.kernels.native.library import Library
from forerun.kernels.native.packed import Kept, unsupported
from forerun.kernels.native.scratch import Scratch
from forerun.kernels.native.structs import FrLayer, FrLinear, FrPass, FrStep

ACTIVATIONS = {"silu": 0, "gelu_pytorch_tanh": 1}
CACHE_DTYPES = (torch.float32, torch.bfloat16)
HEAD_MULTIPLE = 32


def why_not(layer: LayerOperands, dtype: torch.dtype) -> str | None:
    """The reason that the kernel cannot serve; None if it can. dtype: of keys and values."""
    loaded = library.load()
    if loaded is None:
        return library.why_not()
    reasons = (
        _why_no_mixer(layer.mixer, dtype),
        _why_no_feed_forward(layer.feed_forward),
        *(unsupported(loaded, part.weight) for part in layer.linears),
    )
    return next((reason for reason in reasons if reason is not None), None)


def _why_no_mixer(mixer: AttentionOperands | DeltaOperands, dtype: torch.dtype) -> str | None:
    if isinstance(mixer, DeltaOperands):
        return gated_delta.why_not(mixer)
    return _why_no_attention(mixer, dtype)


def _why_no_feed_forward(part: MlpOperands | ExpertOperands) -> str | None:
    if isinstance(part, ExpertOperands):
        reason = experts.why_not(part)
        if reason is not None:
            return reason
    activation = _activation(part)
    return None if activation in ACTIVATIONS else f"the activation is {activation}"


def _activation(part: MlpOperands | ExpertOperands) -> str:
    return part.activation if isinstance(part, MlpOperands) else part.experts[0].activation


def _why_no_attention(mixer: AttentionOperands, dtype: torch.dtype) -> str | None:
    if dtype not in CACHE_DTYPES:
        return f"keys and values are {dtype}"
    if mixer.head_dim % HEAD_MULTIPLE:
        return f"heads are {mixer.head_dim} wide, which is no multiple of {HEAD_MULTIPLE}"
    if len(mixer.qkv) > len(FrLayer().qkv):
        return f"queries, keys and values are in {len(mixer.qkv)} parts"
    return None


class NativeLayer:
    """Holds the repacked weights; those it was made of are not kept."""

    def __init__(self, layer: LayerOperands, loaded: Library) -> None:
        self._kept = kept = Kept(loaded)
        self._experts: NativeExperts | None = None
        self.struct = FrLayer(
            input_norm=kept.address(layer.input_norm),
            attended_norm=kept.address(layer.attended_norm),
            mlp_norm=kept.address(layer.mlp_norm),
            output_norm=kept.address(layer.output_norm),
            token_norm=kept.address(layer.token_norm),
            output=kept.linear(layer.output),
            epsilon=layer.epsilon,
            hidden=layer.input_norm.shape[0],
            activation=ACTIVATIONS[_activation(layer.feed_forward)],
            normed_residual=int(layer.normed_residual),
        )
        self._feed_forward(layer.feed_forward, loaded)

    @property
    def nbytes(self) -> int:
        return self._kept.nbytes + (0 if self._experts is None else self._experts.nbytes)

    def _feed_forward(self, part: MlpOperands | ExpertOperands, loaded: Library) -> None:
        struct, kept = self.struct, self._kept
        if isinstance(part, ExpertOperands):
            self._experts = NativeExperts(loaded, part)
            struct.experts = pointer(self._experts.struct)
            return
        struct.gate, struct.up, struct.down = map(kept.linear, (part.gate, part.up, part.down))
        struct.inner = part.gate.weight.out_features


class AttentionLayer(NativeLayer):
    """Causal attention over a cache's rows."""

    def __init__(
        self, layer: LayerOperands, mixer: AttentionOperands, loaded: Library, step: FrStep
    ) -> None:
        """step: of the next runs, which `place` fills"""
        super().__init__(layer, loaded)
        struct, kept = self.struct, self._kept
        struct.query_norm = kept.address(mixer.query_norm)
        struct.key_norm = kept.address(mixer.key_norm)
        struct.qkv = (FrLinear * 3)(*(kept.linear(part) for part in mixer.qkv))
        struct.output_gate = kept.linear(mixer.gate)
        struct.attention_scale, struct.window = mixer.scale, mixer.window or 0
        struct.heads, struct.kv_heads = mixer.heads, mixer.kv_heads
        struct.head_dim, struct.rotary_dim = mixer.head_dim, mixer.rotary_dim or 0
        assert loaded.layer_supported(struct)
        self._step = step
        self._keys: Callable[[], Tensor | None] = _nothing  # those whose addresses the step has
        self._values: Callable[[], Tensor | None] = _nothing

    def place(
        self, keys: Tensor, values: Tensor, *, first_row: int, live: int, first_position: int
    ) -> None:
        """Say where the next run writes and what it sees; the caller keeps both alive until then.

        keys, values    [kv_heads, capacity, head_dim], the last two dimensions contiguous; there
                        may be a leading dimension of 1. The new rows are written
        first_row       where the first new row goes
        live            rows of the history, which end with the new ones
        first_position  of the first of them
        """
        if self._keys() is not keys or self._values() is not values:
            self._find(keys, values)
        step = self._step
        step.first_row, step.live, step.first_position = first_row, live, first_position

    def _find(self, keys: Tensor, values: Tensor) -> None:
        """A tensor keeps its address, and those of a cache are the same at most steps."""
        step = self._step
        step.keys, step.values = keys.data_ptr(), values.data_ptr()
        step.key_stride, step.value_stride = keys.stride(-3), values.stride(-3)
        # the buffers of a cache that was freed shall go
        self._keys, self._values = ref(keys), ref(values)


class DeltaLayer(NativeLayer):
    """A gated-delta layer over a cache's states."""

    def __init__(
        self, layer: LayerOperands, mixer: DeltaOperands, loaded: Library, step: FrStep
    ) -> None:
        """step: of the next runs"""
        super().__init__(layer, loaded)
        self._places = DeltaPlaces(mixer, self._kept)
        self.struct.delta = pointer(self._places.struct)
        assert loaded.layer_supported(self.struct)
        step.delta = pointer(self._places.step)

    def place(self, write: Write) -> None:
        """Say what the next run reads and fills; the caller keeps all of it alive until then."""
        self._places.place(write)


class NativeLayers:
    """The layers of one model, which work in the same memory: one thread runs them."""

    def __init__(self, layers: list[LayerOperands], dtype: torch.dtype, threads: int) -> None:
        """Empties the list, so that of no more than one layer there are both forms of weights."""
        loaded = library.load()
        assert loaded is not None, library.why_not()
        self._library, self._team, self._scratch = loaded, loaded.team(threads), Scratch()
        self.fold = NativeFold(threads)  # as gated-delta layers take steps, to the last bit
        ropes = [_rope(layer) for layer in layers]
        self._passes = [FrPass() for _ in range(1 + max(ropes))]
        bfloat16 = int(dtype == torch.bfloat16)
        self._steps = (FrStep * len(layers))(
            *(FrStep(addressof(self._passes[rope]), bfloat16=bfloat16) for rope in ropes)
        )
        self.layers = [_layer(layers.pop(0), loaded, step) for step in self._steps]
        self._structs = (FrLayer * len(ropes))(*(layer.struct for layer in self.layers))
        self._widest = 0

    def enter(
        self,
        stream: Tensor,
        width: int,
        turns: Sequence[tuple[int, int]],
        tokens: Tensor | None = None,
    ) -> None:
        """Say which rows pass in the next runs; the caller keeps all of it alive until then.

        stream  [width or more, hidden] float32, contiguous, and replaced; there may be a leading
                dimension of 1
        turns   of each rope, the addresses of cosines and sines [width or more, rotary_dim / 2]
                float32
        tokens  as the stream, and only read: of layers with a norm for them
        """
        if width > self._widest:
            self._make_room(width)
        address, read = stream.data_ptr(), None if tokens is None else tokens.data_ptr()
        for each, (cosines, sines) in zip(self._passes, turns, strict=True):
            each.stream, each.cosines, each.sines = address, cosines, sines
            each.width, each.tokens = width, read

    def run(self, first: int, end: int) -> None:
        """Layers `[first, end)`, each where it was placed.

        One call for many: what Python does between two layers, it does with caches full of weights.
        """
        self._team.layers(
            addressof(self._structs) + first * sizeof(FrLayer),
            addressof(self._steps) + first * sizeof(FrStep),
            end - first,
            self._scratch.address,
        )

    def _make_room(self, width: int) -> None:
        threads = self._team.threads
        for layer in self.layers:
            self._scratch.reserve(self._library.layer_scratch(layer.struct, width, threads))
        self._widest = width


def _nothing() -> None:
    """What a reference to a tensor answers before there was one."""


def _rope(layer: LayerOperands) -> int:
    return layer.mixer.rope if isinstance(layer.mixer, AttentionOperands) else 0


def _layer(layer: LayerOperands, loaded: Library, step: FrStep) -> AttentionLayer | DeltaLayer:
    mixer = layer.mixer
    if isinstance(mixer, DeltaOperands):
        return DeltaLayer(layer, mixer, loaded, step)
    return AttentionLayer(layer, mixer, loaded, step)
