"""Half-split rotation: pair (i, i + d/2) turns by one angle. Su et al. 2021, arXiv 2104.09864."""

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first d dimensions of each head; the others pass.

    x         [B, L, heads, D]
    cos, sin  [B, L, 1, d], d <= D even; the first half of `sin` carries a minus sign
    """
    d = cos.shape[-1]
    part = x[..., :d]
    turned = part * cos + torch.roll(part, d // 2, -1) * sin
    return turned if d == x.shape[-1] else torch.cat((turned, x[..., d:]), -1)
