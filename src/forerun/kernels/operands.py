"""What quantised operations take: the words and group terms of weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.base.quantisation import BITS


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
class BlockScaledWeight:
    """`w = scale * c`, codes and scales small floats, one scale a group of columns.

    Words as in `AffineWeight`. `kernels.dequantise.floats` says what codes and scales stand for.
    """

    words: Tensor  # [out, in * bits / 32] uint32
    scale: Tensor  # [out, in / group] uint8
    kind: str  # "nvfp4", "mxfp4" or "mxfp8"

    @property
    def bits(self) -> int:
        return BITS[self.kind]

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


Quantised = AffineWeight | BlockScaledWeight | RepackedWeight


@dataclass(frozen=True, slots=True)
class BiasedLinear:
    """`x @ weight.T + bias`."""

    weight: Quantised
    bias: Tensor | None  # [out]
