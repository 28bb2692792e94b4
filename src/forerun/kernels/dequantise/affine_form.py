"""mxfp4 weights as affine int8 ones of the same values, for kernels that know integers alone.

Twice a code is a whole number from -12 to 12, so 12 more than that is the integer's code, under
half of the scale. Codes of nvfp4 would do as well, but its groups of 16 are no integer kernel's;
those of mxfp8 span more than eight bits.
"""

import torch

from forerun.kernels.dequantise.floats import code_table, scale_values
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
    pairs = (2 * code_table(4) + _MIDDLE).to(torch.uint8).view(torch.int16).flatten()
    octets = weight.words.contiguous().view(torch.uint8)
    codes = pairs.to(weight.device).index_select(0, octets.flatten().int())
    words = codes.view(torch.uint32).view(octets.shape[0], octets.shape[1] // 2)
    scale = scale_values(weight.scale, weight.kind) / 2
    return AffineWeight(words, scale, -_MIDDLE * scale, 8)
