"""Packing and quantisation, as pure functions. Reading them back is `kernels.dequantise`."""

import torch
from torch import Tensor

from forerun.base.errors import ImportFailedError
from forerun.kernels.operands import AffineWeight, BlockScaledWeight
from forerun.quant.block_scaled import encode, row_factors
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
    """The nearest codes of [out, in] values. Rows are independent, so they may come in parts.

    Codes are chosen for the terms of groups as they are stored, rounded, so that no value is
    further off than the format's steps make it. Affine terms span the range of each group and are
    of `scale_dtype`; where that has no step so small, its middle stands for the group. nvfp4 gets a
    global scale a row, a power of two. Raises ImportFailedError for columns that do not make up
    whole groups and for values that are no numbers or out of range.
    """
    rows, columns = values.shape
    if columns % form.group:
        raise ImportFailedError(
            f"{columns} columns do not make up groups of {form.group}; leave quantize out"
        )
    groups = values.float().reshape(rows, columns // form.group, form.group)
    if not groups.isfinite().all():
        raise ImportFailedError(
            "there are values that are no finite numbers; get the checkpoint again"
        )
    if form.affine:
        return PackedWeight(_affine(groups, form.bits, scale_dtype), form)
    return _block_scaled(groups, form)


def _affine(groups: Tensor, bits: int, scale_dtype: torch.dtype) -> AffineWeight:
    low, high = groups.aminmax(dim=-1)
    scale = ((high - low) / (2**bits - 1)).to(scale_dtype)
    lost = (scale == 0) & (high > low)  # no step that small: one value stands for them all
    bias = torch.where(lost, low + (high - low) / 2, low).to(scale_dtype)
    if not (scale.isfinite().all() and bias.isfinite().all()):
        raise ImportFailedError(
            f"values up to {float(groups.abs().max()):.3g} do not fit {scale_dtype} scales; "
            "quantize to mxfp8, whose scales reach as far as bf16, or leave quantize out"
        )
    step = scale.float()
    step = torch.where(step > 0, step, torch.inf)  # without steps all codes are 0
    codes = ((groups - bias.float()[..., None]) / step[..., None]).round_()
    codes = codes.clamp_(0, 2**bits - 1).to(torch.uint8).flatten(1)
    return AffineWeight(pack(codes, bits), scale, bias, bits)


def _block_scaled(groups: Tensor, form: QuantFormat) -> PackedWeight:
    factors = row_factors(groups) if form.name == "nvfp4" else None
    if factors is not None:
        groups = groups / factors[:, None, None]
    codes, scale = encode(groups, form.name)
    data = BlockScaledWeight(pack(codes.flatten(1), form.bits), scale, form.name)
    return PackedWeight(data, form, factors)
