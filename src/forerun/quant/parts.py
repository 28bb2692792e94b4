"""A quantised weight as the tensors that a file holds of it (07 PLN-5)."""

from torch import Tensor

from forerun.kernels.operands import AffineWeight
from forerun.quant.packed import PackedWeight


def stored_parts(weight: PackedWeight) -> dict[str, Tensor]:
    """By what goes after the weight's name: "" for its words, ".scale", ".bias" for zero points
    and ".global_scale", the last two where the weight has them."""
    parts = {"": weight.data.words, ".scale": weight.data.scale}
    if isinstance(weight.data, AffineWeight) and weight.data.bias is not None:
        parts[".bias"] = weight.data.bias
    if weight.global_scale is not None:
        parts[".global_scale"] = weight.global_scale
    return parts
