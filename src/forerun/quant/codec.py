"""Packing and affine quantisation, as pure functions. Reading them back is `kernels.dequantise`."""

import torch
from torch import Tensor

from forerun.base.errors import ImportFailedError
from forerun.kernels.operands import AffineWeight
from forerun.quant.formats import QuantFormat
from forerun.quant.packed import PackedWeight


def pack(codes: Tensor, bits: int) -> Tensor:
    """[..., n] uint8 codes to [..., n * bits / 32] uint32 words, the lowest column lowest."""
    octets = codes
    if bits == 4:
        octets = codes[..., 0::2] | codes[..., 1::2] << 4
    return octets.contiguous().view(torch.uint32)


def quantise(
    values: Tensor, form: QuantFormat, scale_dtype: torch.dtype = torch.float16
) -> PackedWeight:
    """The nearest affine codes of [out, in] values, over the range of each group.

    Codes are chosen for scale and zero points as they are stored, rounded to `scale_dtype`, so that
    no value is further off than half a step and the rounding of its group's terms. Raises
    ImportFailedError for columns that do not make up whole groups and for values out of range.
    """
    rows, columns = values.shape
    if columns % form.group:
        raise ImportFailedError(
            f"{columns} columns do not make up groups of {form.group}; keep the tensor dense"
        )
    groups = values.float().view(rows, -1, form.group)
    low, high = groups.aminmax(dim=-1)
    scale = ((high - low) / (2**form.bits - 1)).to(scale_dtype)
    bias = low.to(scale_dtype)
    if not (scale.isfinite().all() and bias.isfinite().all()):
        raise ImportFailedError(
            f"values up to {float(values.abs().max()):.3g} do not fit {scale_dtype} scales; "
            "keep the tensor dense"
        )
    step = scale.float()
    step = torch.where(step > 0, step, torch.inf)  # a group of one value: code 0 stands for it
    codes = ((groups - bias.float()[..., None]) / step[..., None]).round_()
    codes = codes.clamp_(0, 2**form.bits - 1).to(torch.uint8).view(rows, columns)
    return PackedWeight(AffineWeight(pack(codes, form.bits), scale, bias, form.bits), form)
