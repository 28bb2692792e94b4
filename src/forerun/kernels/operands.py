"""What quantised operations take: a weight's words and the terms of its groups."""

from dataclasses import dataclass

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
