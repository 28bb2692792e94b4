"""Root-mean-square norm. Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467, equation 4."""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Scale each row of `x` to unit root mean square, then by `weight`.

    x       [..., dim], any float dtype
    weight  [dim], None for 1
    eps     added to the mean square, not to its root
    returns [..., dim] in the dtype of `x`; computed in float32, rounded once at the end
    """
    wide = x.float()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normal if weight is None else normal * weight.float()).to(x.dtype)
