"""What quantised operations take: the words and group terms of weights, and whole layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class AffineWeight:
    """`w = scale * q + bias`, q unsigned, one scale and bias a group of columns.

    A word holds `32 / bits` neighbouring columns, the lowest column in the lowest bits.
    """

    words: Tensor  # [out, in * bits / 32] uint32
    scale: Tensor  # [out, in / group], any float dtype
    bias: Tensor | None  # the same shape; None: no zero points, bias 0
    bits: int  # 4 or 8

    @property
    def out_features(self) -> int:
        return self.words.shape[0]

    @property
    def in_features(self) -> int:
        return self.words.shape[1] * 32 // self.bits

    @property
    def group(self) -> int:
        return self.in_features // self.scale.shape[1]

    @property
    def device(self) -> torch.device:
        return self.words.device


@dataclass(frozen=True, slots=True)
class RepackedWeight:
    """An affine weight in the layout of the C++ kernels: `native/linear.h` states it."""

    data: Tensor  # uint8, contiguous
    out_features: int
    in_features: int
    group: int
    bits: int  # 4 or 8
    wide_terms: bool  # scales and zero terms are float32; else half precision

    @property
    def device(self) -> torch.device:
        return self.data.device


Affine = AffineWeight | RepackedWeight


@dataclass(frozen=True, slots=True)
class BiasedLinear:
    """`x @ weight.T + bias`."""

    weight: Affine
    bias: Tensor | None  # [out]


@dataclass(frozen=True, slots=True)
class LayerOperands:
    """A decoder layer of gated MLP and causal attention, its projections apart.

    Norms are float32 factors, [hidden] or [head_dim]; None where the family has none.
    """

    qkv: Sequence[BiasedLinear]  # one to three: together queries, keys, values
    output: BiasedLinear
    gate: BiasedLinear
    up: BiasedLinear
    down: BiasedLinear
    input_norm: Tensor
    mlp_norm: Tensor
    attended_norm: Tensor | None  # of what attention adds to the stream
    output_norm: Tensor | None  # of what the MLP adds to it
    query_norm: Tensor | None  # of each head
    key_norm: Tensor | None
    epsilon: float
    heads: int
    kv_heads: int
    head_dim: int
    attention_scale: float
    activation: str  # "silu" or "gelu_pytorch_tanh"
    window: int | None  # positions that a query sees, itself included; None: all before it
    rope: int = 0  # which of the model's tables of angles turns it
    token_norm: Tensor | None = None  # of tokens, which attention reads beside the stream
    normed_residual: bool = False  # what attention adds to is the normed stream

    @property
    def linears(self) -> Sequence[BiasedLinear]:
        return (*self.qkv, self.output, self.gate, self.up, self.down)
