"""The norm of a few rows on a CPU in four operations instead of ten.

PyTorch has no single operation for it there; `rms_norm` is a chain like the reference. A layer
norm is one operation, in float32 whatever x is, and of `[x, -x]` it is the norm wanted: the mean
is 0, the variance the mean square. For a few rows the number of operations is the cost; for many,
reading each row twice is.
"""

import torch
from torch import Tensor

from forerun.kernels.rms_norm.reference import rms_norm

MOST_ROWS = 16  # measured even with the reference (576 columns, bf16)


def why_not(weight: Tensor | None) -> str | None:
    """The reason that the form cannot serve; None if it can."""
    if weight is not None and weight.dim() != 1:
        return "a weight for each head"
    return None


class LayerNormForm:
    """One row, or a few; `uniform`: any number, and a row's bits do not depend on how many."""

    def __init__(self, weight: Tensor | None, eps: float, *, uniform: bool = False) -> None:
        self._weight, self._eps, self._uniform = weight, eps, uniform
        self._twice = None if weight is None else torch.cat((weight, weight)).float()

    def __call__(self, x: Tensor) -> Tensor:
        dim = x.shape[-1]
        if x.numel() > MOST_ROWS * dim and not self._uniform:
            return rms_norm(x, self._weight, self._eps)
        both = torch.cat((x, -x), -1)
        return torch.layer_norm(both, (2 * dim,), self._twice, None, self._eps)[..., :dim]
