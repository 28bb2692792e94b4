"""A decoder layer in one C++ call: a team of threads goes through it without coming back.

The residual stream is float32. Activations of products are rounded to sixteen bits, with one scale
a row; keys and values to the dtype of their buffers. Weights are exact. A row's result depends on
nothing but the row, its position and its history: neither on the rows beside it nor on how
a history came to be, so that chunks of any size give equal bits.
"""

from collections.abc import Callable, Sequence
from ctypes import addressof, sizeof
from weakref import ref

import torch
from torch import Tensor

from forerun.kernels.layer_operands import AttentionOperands, LayerOperands, MlpOperands
from forerun.kernels.native import library
from forerun.kernels.native.library import Library
from forerun.kernels.native.packed import PackedLinear, unsupported
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
    if dtype not in CACHE_DTYPES:
        return f"keys and values are {dtype}"
    mixer, mlp = layer.mixer, layer.feed_forward
    if not isinstance(mixer, AttentionOperands) or not isinstance(mlp, MlpOperands):
        return "layers are not of attention and an MLP"
    if mixer.head_dim % HEAD_MULTIPLE:
        return f"heads are {mixer.head_dim} wide, which is no multiple of {HEAD_MULTIPLE}"
    if mlp.activation not in ACTIVATIONS:
        return f"the activation is {mlp.activation}"
    if len(mixer.qkv) > len(FrLayer().qkv):
        return f"queries, keys and values are in {len(mixer.qkv)} parts"
    for part in layer.linears:
        reason = unsupported(loaded, part.weight)
        if reason is not None:
            return reason
    return None


class NativeLayer:
    """Holds the repacked weights; those it was made of are not kept."""

    def __init__(self, layer: LayerOperands, loaded: Library, step: FrStep) -> None:
        """step: of the next runs, which `place` fills"""
        mixer, mlp = layer.mixer, layer.feed_forward
        assert isinstance(mixer, AttentionOperands), "`why_not` has been asked"
        assert isinstance(mlp, MlpOperands), "`why_not` has been asked"
        packed = [PackedLinear(loaded, part.weight, part.bias) for part in layer.linears]
        norms = {
            name: None if factors is None else factors.contiguous()
            for name, factors in (
                ("input_norm", layer.input_norm),
                ("query_norm", mixer.query_norm),
                ("key_norm", mixer.key_norm),
                ("attended_norm", layer.attended_norm),
                ("mlp_norm", layer.mlp_norm),
                ("output_norm", layer.output_norm),
                ("token_norm", layer.token_norm),
            )
        }
        assert all(norm is None or norm.dtype == torch.float32 for norm in norms.values())
        self._kept = (packed, norms)  # the struct has their addresses
        *mixing, output, gate, up, down = (part.struct for part in packed)
        qkv, output_gate = mixing[: len(mixer.qkv)], mixing[len(mixer.qkv) :]
        self.struct = FrLayer(
            qkv=(FrLinear * 3)(*qkv),
            output=output,
            gate=gate,
            up=up,
            down=down,
            epsilon=layer.epsilon,
            attention_scale=mixer.scale,
            hidden=layer.input_norm.shape[0],
            inner=gate.rows,
            heads=mixer.heads,
            kv_heads=mixer.kv_heads,
            head_dim=mixer.head_dim,
            activation=ACTIVATIONS[mlp.activation],
            window=mixer.window or 0,
            normed_residual=int(layer.normed_residual),
            rotary_dim=mixer.rotary_dim or 0,
            output_gate=output_gate[0] if output_gate else FrLinear(),
            **{name: norm.data_ptr() for name, norm in norms.items() if norm is not None},
        )
        assert loaded.layer_supported(self.struct)
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

    @property
    def nbytes(self) -> int:
        packed, norms = self._kept
        held = sum(norm.nbytes for norm in norms.values() if norm is not None)
        return held + sum(part.nbytes for part in packed)

    def _find(self, keys: Tensor, values: Tensor) -> None:
        """A tensor keeps its address, and those of a cache are the same at most steps."""
        step = self._step
        step.keys, step.values = keys.data_ptr(), values.data_ptr()
        step.key_stride, step.value_stride = keys.stride(-3), values.stride(-3)
        # the buffers of a cache that was freed shall go
        self._keys, self._values = ref(keys), ref(values)


class NativeLayers:
    """The layers of one model, which work in the same memory: one thread runs them."""

    def __init__(self, layers: Sequence[LayerOperands], dtype: torch.dtype, threads: int) -> None:
        loaded = library.load()
        assert loaded is not None, library.why_not()
        self._library, self._team, self._scratch = loaded, loaded.team(threads), Scratch()
        ropes = [_rope(layer) for layer in layers]
        self._passes = [FrPass() for _ in range(1 + max(ropes))]
        bfloat16 = int(dtype == torch.bfloat16)
        self._steps = (FrStep * len(layers))(
            *(FrStep(addressof(self._passes[rope]), bfloat16=bfloat16) for rope in ropes)
        )
        self.layers = [
            NativeLayer(layer, loaded, step)
            for layer, step in zip(layers, self._steps, strict=True)
        ]
        self._structs = (FrLayer * len(layers))(*(layer.struct for layer in self.layers))
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
