"""What quantised operations take: the words and group terms of weights."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from forerun.base.quantisation import BITS


@dataclass(frozen=True, slots=True)
class _Words(ABC):
    """Codes, and a scale a group of columns.

    A word holds `32 / bits` neighbouring columns, the lowest column in the lowest bits.
    """

    words: Tensor  # [out, in * bits / 32] uint32
    scale: Tensor  # [out, in / group]

    @property
    @abstractmethod
    def bits(self) -> int:
        """4 or 8"""

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
class AffineWeight(_Words):
    """`w = scale * q + bias`, q unsigned; scales are of any float dtype."""

    bias: Tensor | None  # the shape of `scale`; None: no zero points, bias 0
    bits: int = field()  # said to be a field, since the property would become its default


@dataclass(frozen=True, slots=True)
class BlockScaledWeight(_Words):
    """`w = scale * c`, codes and scales small floats of 8 bits at most; scales are uint8.

    `kernels.dequantise.floats` says what both stand for.
    """

    kind: str  # "nvfp4", "mxfp4" or "mxfp8"

    @property
    def bits(self) -> int:
        return BITS[self.kind]


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
