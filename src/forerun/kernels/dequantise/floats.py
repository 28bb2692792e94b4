"""The small floats of block-scaled weights, by tables (OCP MX specification 1.0).

e2m1  sign, two bits of exponent, one of mantissa: 0 to 6, no infinity and no NaN
e4m3  0 to 448, no infinity, NaN where all bits but the sign are set
e8m0  powers of two from 2**-127 to 2**127, NaN where all bits are set

Tables, since not every device of PyTorch knows its eight-bit floats and none knows e2m1. They are
one-dimensional and read by `index_select`: on a CPU that is four times as fast as a conversion.
"""

from functools import cache

import torch
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # without the sign, which is the highest bit

_SCALES = {
    "nvfp4": torch.float8_e4m3fn,
    "mxfp4": torch.float8_e8m0fnu,
    "mxfp8": torch.float8_e8m0fnu,
}


def code_values(octets: Tensor, bits: int) -> Tensor:
    """Codes, [..., n] bytes, as float32 [..., n * 8 / bits], the lowest bits first."""
    found = _code_table(bits, octets.device).index_select(0, octets.flatten().int())
    return found.view(torch.float32).view(*octets.shape[:-1], octets.shape[-1] * 8 // bits)


def scale_values(scale: Tensor, kind: str) -> Tensor:
    """Scales of a kind of weight, bytes of any shape, as float32."""
    return _scale_table(kind, scale.device).index_select(0, scale.flatten().int()).view(scale.shape)


def code_table(bits: int) -> Tensor:
    """[256, 8 / bits] float32: the values of the codes in each byte."""
    if bits == 8:
        return _bytes().view(torch.float8_e4m3fn).float()[:, None]
    signed = torch.tensor((*E2M1, *(-value for value in E2M1)))
    return torch.stack((signed.repeat(16), signed.repeat_interleave(16)), -1)


@cache
def _code_table(bits: int, device: torch.device) -> Tensor:
    """[256] numbers as wide as a byte's values together."""
    table = code_table(bits)
    return (table if bits == 8 else table.view(torch.int64)).flatten().to(device)


@cache
def _scale_table(kind: str, device: torch.device) -> Tensor:
    return _bytes().view(_SCALES[kind]).float().to(device)


def _bytes() -> Tensor:
    return torch.arange(256, dtype=torch.uint8)
