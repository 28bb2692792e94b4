"""A decoder layer in one C++ call: a team of threads goes through it without coming back.

The residual stream is float32. Activations of products are rounded to sixteen bits, with one scale
a row; keys and values to the dtype of their buffers. Weights are exact. A row's result depends on
nothing but the row, its position and its history: neither on the rows beside it nor on how
a history came to be, so that chunks of any size give equal bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.kernels.native import library
from forerun.kernels.native.library import FrLayer, FrLinear, FrStep
from forerun.kernels.native.packed import PackedLinear, unsupported
from forerun.kernels.native.scratch import Scratch
from forerun.kernels.operands import LayerOperands

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
    if layer.head_dim % HEAD_MULTIPLE:
        return f"heads are {layer.head_dim} wide, which is no multiple of {HEAD_MULTIPLE}"
    if layer.activation not in ACTIVATIONS:
        return f"the activation is {layer.activation}"
    if len(layer.qkv) > len(FrLayer().qkv):
        return f"queries, keys and values are in {len(layer.qkv)} parts"
    for part in layer.linears:
        reason = unsupported(loaded, part.weight)
        if reason is not None:
            return reason
    return None


@dataclass(frozen=True, slots=True)
class Place:
    """Where new rows go, and what they see of the buffers: plain integers."""

    width: int  # new rows
    first_row: int  # of the buffers
    live: int  # rows of the history, which end with the new ones
    first_position: int  # of the first of them


class NativeLayer:
    """Holds the repacked weights; those it was made of are not kept."""

    def __init__(
        self, layer: LayerOperands, dtype: torch.dtype, threads: int, scratch: Scratch
    ) -> None:
        """scratch: may be shared by all layers that one thread runs"""
        loaded = library.load()
        assert loaded is not None, library.why_not()
        self._library, self._team, self._scratch = loaded, loaded.team(threads), scratch
        packed = [PackedLinear(loaded, part.weight, part.bias) for part in layer.linears]
        norms = {
            name: None if factors is None else factors.contiguous()
            for name, factors in (
                ("input_norm", layer.input_norm),
                ("query_norm", layer.query_norm),
                ("key_norm", layer.key_norm),
                ("attended_norm", layer.attended_norm),
                ("mlp_norm", layer.mlp_norm),
                ("output_norm", layer.output_norm),
            )
        }
        assert all(norm is None or norm.dtype == torch.float32 for norm in norms.values())
        self._kept = (packed, norms)  # the struct has their addresses
        *qkv, output, gate, up, down = (part.struct for part in packed)
        self._struct = FrLayer(
            qkv=(FrLinear * 3)(*qkv),
            output=output,
            gate=gate,
            up=up,
            down=down,
            epsilon=layer.epsilon,
            attention_scale=layer.attention_scale,
            hidden=layer.input_norm.shape[0],
            inner=gate.rows,
            heads=layer.heads,
            kv_heads=layer.kv_heads,
            head_dim=layer.head_dim,
            activation=ACTIVATIONS[layer.activation],
            window=layer.window or 0,
            **{name: norm.data_ptr() for name, norm in norms.items() if norm is not None},
        )
        assert loaded.layer_supported(self._struct)
        self._step = FrStep(bfloat16=int(dtype == torch.bfloat16))
        self.call = (self._struct, self._step)
        self._widest = 0

    def prepare(
        self, stream: Tensor, turns: tuple[Tensor, Tensor], rows: tuple[Tensor, Tensor], at: Place
    ) -> None:
        """Say what the next run is over; all of it is kept alive by the caller until then.

        stream  [width or more, hidden] float32, contiguous: the new rows, which are replaced
        turns   cosines and sines [width or more, head_dim / 2] float32, contiguous
        rows    keys and values [kv_heads, capacity, head_dim], the last two dimensions contiguous:
                the new ones are written

        All of them may have a leading dimension of 1.
        """
        if at.width > self._widest:
            self._make_room(at.width)
        step, (cosines, sines), (keys, values) = self._step, turns, rows
        step.stream = stream.data_ptr()
        step.cosines, step.sines = cosines.data_ptr(), sines.data_ptr()
        step.keys, step.values = keys.data_ptr(), values.data_ptr()
        step.key_stride, step.value_stride = keys.stride(-3), values.stride(-3)
        step.width, step.first_row = at.width, at.first_row
        step.live, step.first_position = at.live, at.first_position

    @property
    def nbytes(self) -> int:
        packed, norms = self._kept
        held = sum(norm.nbytes for norm in norms.values() if norm is not None)
        return held + sum(part.nbytes for part in packed)

    def _make_room(self, width: int) -> None:
        self._scratch.reserve(self._library.layer_scratch(self._struct, width, self._team.threads))
        self._widest = width


class NativeLayers:
    """The layers of one model, which work in the same memory: one thread runs them."""

    def __init__(self, layers: Sequence[LayerOperands], dtype: torch.dtype, threads: int) -> None:
        loaded = library.load()
        assert loaded is not None, library.why_not()
        self._team, self._scratch = loaded.team(threads), Scratch()
        self.layers = [NativeLayer(layer, dtype, threads, self._scratch) for layer in layers]
        self._calls = [layer.call for layer in self.layers]

    def run(self, first: int, end: int) -> None:
        """Layers `[first, end)` as prepared.

        One call for many: what Python does between two layers, it does with caches full of weights.
        """
        self._team.layers(self._calls[first:end], self._scratch.address)
