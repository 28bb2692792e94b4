"""The small floats of block-scaled weights, as tables by code (OCP MX specification 1.0).

e2m1  sign, two bits of exponent, one of mantissa: 0 to 6, no infinity and no NaN
e4m3  0 to 448, no infinity, NaN where all bits but the sign are set
e8m0  powers of two from 2**-127 to 2**127, NaN where all bits are set

Tables, since not every device of PyTorch knows its eight-bit floats and none knows e2m1.
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


@cache
def code_values(bits: int, device: torch.device) -> Tensor:
    """[256, columns a byte] float32: what each byte of codes stands for, lowest bits first."""
    if bits == 8:
        return _bytes().view(torch.float8_e4m3fn).float()[:, None].to(device)
    signed = torch.tensor((*E2M1, *(-value for value in E2M1)))
    return torch.stack((signed.repeat(16), signed.repeat_interleave(16)), -1).to(device)


@cache
def scale_values(kind: str, device: torch.device) -> Tensor:
    """[256, 1] float32: what each scale of a kind stands for."""
    return _bytes().view(_SCALES[kind]).float()[:, None].to(device)


def _bytes() -> Tensor:
    return torch.arange(256, dtype=torch.uint8)
