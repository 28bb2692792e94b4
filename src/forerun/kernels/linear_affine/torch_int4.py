"""PyTorch's own packed int4 product on a CPU, for int4 weights and, by halves, int8 ones.

An int8 code is 16 * high + low, so an int8 weight is two int4 weights side by side along the
inputs, `[high | low]`, whose scales are `16 s` and `s`, and the product is taken with `[x | x]`.
The scale's power of two changes no mantissa, so the halves lose nothing that the scale has not.

The kernel computes `(q - 8) * scale + zero` and the sum over inputs in float32, but takes scale and
zero in the dtype of the activations. Both are rounded about the middle code: `zero` is the value
that the middle code stands for, so that rounding the scale moves values in proportion to their
distance from it (by 2**-8 at most, bfloat16's precision) and shifts no group as a whole.
"""

import torch
from torch import Tensor
from torch.nn import functional

from forerun.kernels.dequantise import affine_form
from forerun.kernels.dequantise.reference import unpack
from forerun.kernels.operands import AffineWeight, BlockScaledWeight

GROUPS = (32, 64, 128, 256)
ROW_MULTIPLE = 16  # of the outputs; the last rows are filled up
_CHUNK_ROWS = 4096  # packed at a time, which bounds the int32 copy that packing reads

_pack = torch._convert_weight_to_int4pack_for_cpu
_product = torch._weight_int4pack_mm_for_cpu


def why_not(weight: AffineWeight | BlockScaledWeight, dtype: torch.dtype) -> str | None:
    """The reason that the kernel cannot serve; None if it can."""
    if weight.words.device.type != "cpu":
        return f"weights are on {weight.words.device}"
    if dtype != torch.bfloat16:
        return f"packed int4 products in {dtype} are slower than dequantising"
    if weight.group not in GROUPS:
        return f"groups of {weight.group} columns"
    return affine_form.why_not(weight) if isinstance(weight, BlockScaledWeight) else None


class TorchInt4Linear:
    """Holds the repacked weight; the words it was made from are not kept."""

    def __init__(self, weight: AffineWeight | BlockScaledWeight, dtype: torch.dtype) -> None:
        reason = why_not(weight, dtype)
        assert reason is None, reason
        weight = affine_form.as_affine(weight)
        self._outputs, self._group = weight.out_features, weight.group
        self._halves = weight.bits // 4
        self._packed = _repack(weight)
        self._scales = _scales_and_zeros(weight, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out] in the dtype of `x`, which is that of the constructor."""
        rows = x.reshape(-1, x.shape[-1])
        rows = rows.contiguous() if self._halves == 1 else torch.cat((rows, rows), -1)
        out: Tensor = _product(rows, self._packed, self._group, self._scales)
        if out.shape[-1] != self._outputs:
            out = out[:, : self._outputs]
        return out.view(*x.shape[:-1], self._outputs)

    @property
    def nbytes(self) -> int:
        return self._packed.nbytes + self._scales.nbytes


def _filled_rows(rows: int) -> int:
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE


def _repack(weight: AffineWeight) -> Tensor:
    """[filled out, halves * in / 2] bytes in the layout that the kernel reads on this machine.

    Layouts group rows by 64 at most, so chunks of a multiple of that are packed alone.
    """
    rows, columns = weight.out_features, weight.in_features * (weight.bits // 4)
    packed = torch.empty(_filled_rows(rows), columns // 2, dtype=torch.uint8)
    for start in range(0, rows, _CHUNK_ROWS):
        codes = unpack(weight.words[start : start + _CHUNK_ROWS], weight.bits)
        if weight.bits == 8:
            codes = torch.cat((codes >> 4, codes & 15), -1)
        codes = functional.pad(codes, (0, 0, 0, _filled_rows(len(codes)) - len(codes)))
        packed[start : start + len(codes)] = _pack(codes.int(), 1)
    return packed


def _scales_and_zeros(weight: AffineWeight, dtype: torch.dtype) -> Tensor:
    """[halves * groups, filled out, 2] of `dtype`."""
    scale = weight.scale.float()
    middle = scale * (8 if weight.bits == 4 else 128)
    if weight.bias is not None:
        middle += weight.bias.float()
    scale = scale.to(dtype)  # rounded before it is multiplied: 8 and 16 keep its mantissa
    if weight.bits == 4:
        terms = torch.stack((scale, middle.to(dtype)), -1)
    else:
        high = torch.stack((scale * 16, middle.to(dtype)), -1)
        terms = torch.cat((high, torch.stack((scale, scale * 8), -1)), 1)
    filled = _filled_rows(weight.out_features) - weight.out_features
    return functional.pad(terms, (0, 0, 0, 0, 0, filled)).transpose(0, 1).contiguous()
