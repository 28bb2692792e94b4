"""A quantised weight as it lies in memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.kernels.dequantise.reference import dequantise
from forerun.kernels.operands import AffineWeight
from forerun.quant.formats import QuantFormat


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """Words, group terms and format of one [out, in] weight."""

    data: AffineWeight
    format: QuantFormat
    global_scale: Tensor | None = None  # float32, scalar or [out]: multiplies the product (LIN-4)

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.out_features, self.data.in_features

    def dequantise(self, dtype: torch.dtype) -> Tensor:
        """[out, in] values, global scale included; computed in float32 and rounded once."""
        values = dequantise(self.data, torch.float32)
        if self.global_scale is not None:
            values *= self.global_scale.reshape(-1, 1)
        return values.to(dtype)

    def rows(self, which: slice | Tensor) -> "PackedWeight":
        """The chosen output rows: a view for a slice, a copy for an index."""
        data, scale = self.data, self.global_scale
        bias = None if data.bias is None else data.bias[which]
        part = AffineWeight(data.words[which], data.scale[which], bias, data.bits)
        return PackedWeight(
            part, self.format, scale[which] if scale is not None and scale.dim() else scale
        )


Weight = Tensor | PackedWeight


def fuse_rows(weights: Sequence[Weight]) -> Weight:
    """One weight whose output is the outputs of `weights`, one after the other (LIN-6)."""
    dense = [w for w in weights if isinstance(w, Tensor)]
    assert len(dense) == len(weights)
    return torch.cat(dense)
