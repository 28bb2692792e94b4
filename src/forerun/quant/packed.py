"""A quantised weight as it lies in memory, its slices and its fusion by rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.base.errors import LoadError
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

    @property
    def nbytes(self) -> int:
        parts = (self.data.words, self.data.scale, self.data.bias, self.global_scale)
        return sum(part.nbytes for part in parts if part is not None)

    def folded(self) -> AffineWeight:
        """The same values with the global scale in the terms of the groups, for a product."""
        scale = self.global_scale
        if scale is None:
            return self.data
        factor, data = scale.reshape(-1, 1), self.data
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
        data, scale = self.data, self.global_scale
        bias = None if data.bias is None else data.bias[which]
        # as int32: torch indexes no unsigned words on CUDA
        words = data.words.view(torch.int32)[which].view(torch.uint32)
        part = AffineWeight(words, data.scale[which], bias, data.bits)
        if scale is not None and scale.dim():
            scale = scale[which]
        return PackedWeight(part, self.format, scale)


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
    first = packed[0].data
    biases = [weight.data.bias for weight in packed if weight.data.bias is not None]
    data = AffineWeight(
        torch.cat([weight.data.words for weight in packed]),
        torch.cat([weight.data.scale for weight in packed]),
        torch.cat(biases) if biases else None,
        first.bits,
    )
    return PackedWeight(data, packed[0].format, _fused_global_scale(packed))


def fusable(weights: Sequence[PackedWeight]) -> bool:
    """Whether they have one format, one width, and agree on having zero points."""
    kinds = {(w.format, w.data.in_features, w.data.bias is None) for w in weights}
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


def _names(weights: Sequence[Weight]) -> str:
    return ", ".join(
        f"{w.format.name} group {w.format.group}{'' if w.data.bias is not None else ' scales only'}"
        if isinstance(w, PackedWeight)
        else str(w.dtype).removeprefix("torch.")
        for w in weights
    )
