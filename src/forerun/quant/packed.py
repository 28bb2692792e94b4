"""A quantised weight as it lies in memory, its slices and its fusion by rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.base.errors import LoadError
from forerun.kernels.dequantise.reference import dequantise
from forerun.kernels.operands import AffineWeight, BlockScaledWeight
from forerun.quant.formats import QuantFormat

Data = AffineWeight | BlockScaledWeight


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """Words, group terms and format of one [out, in] weight."""

    data: Data
    format: QuantFormat
    global_scale: Tensor | None = None  # float32, scalar or [out]: multiplies the product (LIN-4)

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.out_features, self.data.in_features

    @property
    def zero_points(self) -> Tensor | None:
        return self.data.bias if isinstance(self.data, AffineWeight) else None

    @property
    def nbytes(self) -> int:
        parts = (self.data.words, self.data.scale, self.zero_points, self.global_scale)
        return sum(part.nbytes for part in parts if part is not None)

    def folded(self) -> Data | None:
        """The same values without a global scale apart: it goes into the terms of affine groups.

        None where the terms have no room for it.
        """
        scale, data = self.global_scale, self.data
        if scale is None:
            return data
        if isinstance(data, BlockScaledWeight):
            return None
        factor = scale.reshape(-1, 1)
        bias = None if data.bias is None else data.bias.float() * factor
        return AffineWeight(data.words, data.scale.float() * factor, bias, data.bits)

    def dequantise(self, dtype: torch.dtype) -> Tensor:
        """[out, in] values, global scale included; computed in float32 and rounded once."""
        if self.global_scale is None:
            return dequantise(self.data, dtype)
        values = dequantise(self.data, torch.float32)
        return values.mul_(self.global_scale.reshape(-1, 1)).to(dtype)

    def rows(self, which: slice | Tensor) -> "PackedWeight":
        """The chosen output rows: a view for a slice, a copy for int64 indices."""
        scale, points = self.global_scale, self.zero_points
        # as int32: torch indexes no unsigned words on CUDA
        words = self.data.words.view(torch.int32)[which].view(torch.uint32)
        if points is not None:
            points = points[which]
        if scale is not None and scale.dim():
            scale = scale[which]
        return _like(self, words, self.data.scale[which], points, scale)


Weight = Tensor | PackedWeight


def fuse_rows(weights: Sequence[Weight]) -> Weight:
    """One weight whose output is the outputs of `weights`, one after the other (LIN-6).

    Exact, since groups run along the inputs. Raises LoadError where formats differ, and with them
    what a caller could do instead: keep the weights apart, or dequantise them first.
    """
    packed = [weight for weight in weights if isinstance(weight, PackedWeight)]
    dense = [weight for weight in weights if isinstance(weight, Tensor)]
    if not packed:
        return torch.cat(dense)
    if dense or not fusable(packed):
        raise LoadError(f"linears of different formats cannot be fused: {_names(weights)}")
    if len(packed) == 1:
        return packed[0]
    words = torch.cat([weight.data.words.view(torch.int32) for weight in packed])
    scale = torch.cat([weight.data.scale for weight in packed])
    points = [weight.zero_points for weight in packed if weight.zero_points is not None]
    return _like(
        packed[0],
        words.view(torch.uint32),
        scale,
        torch.cat(points) if points else None,
        _fused_global_scale(packed),
    )


def fusable(weights: Sequence[PackedWeight]) -> bool:
    """Whether they have one format, one width, and agree on having zero points."""
    kinds = {(w.format, w.data.in_features, w.zero_points is None) for w in weights}
    return len(kinds) == 1


def _fused_global_scale(weights: Sequence[PackedWeight]) -> Tensor | None:
    """One factor a row, 1 where a weight has none; None where none has."""
    if all(weight.global_scale is None for weight in weights):
        return None
    factors = []
    for weight in weights:
        one = torch.ones((), dtype=torch.float32, device=weight.data.words.device)
        scale = one if weight.global_scale is None else weight.global_scale
        factors.append(scale.expand(weight.data.out_features))
    return torch.cat(factors)


def _like(
    weight: PackedWeight,
    words: Tensor,
    scale: Tensor,
    points: Tensor | None,
    global_scale: Tensor | None,
) -> PackedWeight:
    """Other rows in the format of `weight`."""
    data: Data
    if isinstance(weight.data, AffineWeight):
        data = AffineWeight(words, scale, points, weight.data.bits)
    else:
        data = BlockScaledWeight(words, scale, weight.data.kind)
    return PackedWeight(data, weight.format, global_scale)


def _bare(weight: PackedWeight) -> str:
    return " scales only" if weight.format.affine and weight.zero_points is None else ""


def _names(weights: Sequence[Weight]) -> str:
    return ", ".join(
        f"{w.format.name} group {w.format.group}{_bare(w)}"
        if isinstance(w, PackedWeight)
        else str(w.dtype).removeprefix("torch.")
        for w in weights
    )
