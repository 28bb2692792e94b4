"""Affine words to values, in plain torch; runs on every device."""

import torch
from torch import Tensor

from forerun.kernels.operands import AffineWeight


def unpack(words: Tensor, bits: int) -> Tensor:
    """[..., n] uint32 words to [..., n * 32 / bits] uint8 values, lowest bits first.

    Goes by bytes, because torch has few operations for uint32; the word is little-endian.
    """
    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return octets
    return torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)


def dequantise(weight: AffineWeight, dtype: torch.dtype) -> Tensor:
    """[out, in] values in `dtype`; computed in float32, rounded once at the end."""
    q = unpack(weight.words, weight.bits).to(torch.float32)
    groups = q.view(*weight.scale.shape, weight.group).mul_(weight.scale.float().unsqueeze(-1))
    if weight.bias is not None:
        groups.add_(weight.bias.float().unsqueeze(-1))
    return groups.flatten(-2).to(dtype)
