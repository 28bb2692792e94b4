"""Root-mean-square norm. Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467, equation 4."""

from dataclasses import dataclass

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Scale each row of `x` to unit root mean square, then by `weight`.

    x       [..., dim], any float dtype
    weight  broadcast against `x`: [dim], or [heads, dim] for a norm of its own a head; None for 1
    eps     added to the mean square, not to its root
    returns [..., dim] in the dtype of `x`; computed in float32, rounded once at the end
    """
    wide = x.float()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normal if weight is None else normal * weight.float()).to(x.dtype)


@dataclass(frozen=True, slots=True)
class ReferenceRmsNorm:
    """The reference with its weight."""

    weight: Tensor | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)
