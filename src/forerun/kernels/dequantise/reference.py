"""Quantised weights to values, in plain torch; runs on every device."""

import torch
from torch import Tensor

from forerun.kernels.dequantise.floats import code_values, scale_values
from forerun.kernels.operands import BlockScaledWeight, Quantised, RepackedWeight


def unpack(words: Tensor, bits: int) -> Tensor:
    """[..., n] uint32 words to [..., n * 32 / bits] uint8 values, lowest bits first.

    Goes by bytes, because torch has few operations for uint32; the word is little-endian.
    """
    octets = words.contiguous().view(torch.uint8)
    if bits == 8:
        return octets
    return torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)


def dequantise(weight: Quantised, dtype: torch.dtype) -> Tensor:
    """[out, in] values in `dtype`; computed in float32, rounded once at the end."""
    if isinstance(weight, RepackedWeight):
        return _repacked(weight).to(dtype)
    if isinstance(weight, BlockScaledWeight):
        return _block_scaled(weight).to(dtype)
    q = unpack(weight.words, weight.bits).to(torch.float32)
    groups = q.view(*weight.scale.shape, weight.group).mul_(weight.scale.float().unsqueeze(-1))
    if weight.bias is not None:
        groups.add_(weight.bias.float().unsqueeze(-1))
    return groups.flatten(-2).to(dtype)


def _block_scaled(weight: BlockScaledWeight) -> Tensor:
    codes = code_values(weight.words.contiguous().view(torch.uint8), weight.bits)
    scale = scale_values(weight.scale, weight.kind).unsqueeze(-1)
    return codes.view(*weight.scale.shape, weight.group).mul_(scale).flatten(-2)


def _repacked(weight: RepackedWeight) -> Tensor:
    """Blocks of 16 rows, and in each its groups: codes, then scales, then zero terms."""
    groups, code_bytes = weight.in_features // weight.group, weight.group * weight.bits * 2
    packed = weight.data.view(-1, groups, weight.data.numel() // groups // _blocks(weight))
    terms = packed[..., code_bytes:].contiguous()
    terms = terms.view(torch.float32 if weight.wide_terms else torch.float16).float()
    scale, zero = (half[..., None, None, None] for half in terms.view(-1, groups, 2, 16).unbind(2))
    octets = packed[..., :code_bytes].reshape(-1, groups, weight.group // 32, weight.bits, 16, 4)
    codes = octets  # [blocks, groups, 32 columns, chunks, rows, 4 columns]
    if weight.bits == 4:  # a chunk's high codes are of the next four columns
        codes = torch.stack((octets & 15, octets >> 4), 4).flatten(3, 4)
    values = codes.permute(0, 1, 4, 2, 3, 5).float() * scale + zero
    return values.transpose(1, 2).reshape(-1, weight.in_features)[: weight.out_features]


def _blocks(weight: RepackedWeight) -> int:
    return -(-weight.out_features // 16)
