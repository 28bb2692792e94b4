"""A quantised weight from the tensors that a checkpoint stores for it (LIN-1)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.kernels.operands import AffineWeight, BlockScaledWeight
from forerun.quant.formats import QuantFormat
from forerun.quant.packed import PackedWeight


@dataclass(frozen=True, slots=True)
class StoredShapes:
    """What the tensors of one [rows, columns] weight must look like."""

    words: tuple[int, int]
    groups: tuple[int, int]  # of scale and zero points


def stored_shapes(rows: int, columns: int, form: QuantFormat) -> StoredShapes:
    return StoredShapes((rows, columns * form.bits // 32), (rows, columns // form.group))


def packed_weight(
    words: Tensor,
    scale: Tensor,
    zero_points: Tensor | None,
    form: QuantFormat,
    *,
    global_scale: Tensor | None = None,
) -> PackedWeight:
    """The parts as one weight; the tensors are taken as they are."""
    assert words.dtype == torch.uint32, words.dtype
    if form.affine:
        affine = AffineWeight(words, scale, zero_points, form.bits)
        return PackedWeight(affine, form, global_scale)
    assert scale.dtype == torch.uint8, scale.dtype
    assert zero_points is None, f"{form.name} has no zero points"
    data = BlockScaledWeight(words, scale, form.name)
    return PackedWeight(data, form, global_scale)
