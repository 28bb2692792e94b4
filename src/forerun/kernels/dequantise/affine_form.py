"""mxfp4 weights as affine int8 ones of the same values, for kernels that know integers alone.

Twice a code is a whole number from -12 to 12, so 12 more than that is the integer's code, under
half of the scale. Codes of nvfp4 would do as well, but its groups of 16 are no integer kernel's;
those of mxfp8 span more than eight bits.
"""

import torch

from forerun.kernels.dequantise.floats import code_values, scale_values
from forerun.kernels.operands import AffineWeight, BlockScaledWeight

_MIDDLE = 12
_LARGEST_SCALE = 251  # 2**124: under a larger one the sum of terms leaves float32


def why_not(weight: BlockScaledWeight) -> str | None:
    """The reason that a weight has no such form; None if it has."""
    if weight.kind != "mxfp4":
        return f"there is no integer form of {weight.kind}"
    if bool((weight.scale > _LARGEST_SCALE).any()):
        return "there are scales above 2**124 or that are no numbers"
    return None


def as_affine(weight: AffineWeight | BlockScaledWeight) -> AffineWeight:
    """Equal values, bit for bit; scales and zero terms in float32. An affine weight is itself."""
    if isinstance(weight, AffineWeight):
        return weight
    integers = (2 * code_values(weight.bits, weight.device) + _MIDDLE).to(torch.uint8)
    octets = weight.words.contiguous().view(torch.uint8)
    codes = integers[octets.int()].flatten(1)
    scale = scale_values(weight.kind, weight.device)[weight.scale.int()].squeeze(-1) / 2
    return AffineWeight(codes.view(torch.uint32), scale, -_MIDDLE * scale, 8)
