"""Half-split rotation: pair (i, i + d/2) turns by one angle. Su et al. 2021, arXiv 2104.09864."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RopeTables:
    """Cosines and signed sines of one forward's positions, shared by its layers."""

    cos: Tensor  # [B, L, 1, d], d even
    sin: Tensor  # [B, L, 1, d], the first half negated

    def rotate(self, x: Tensor) -> Tensor:
        """Turn the first d dimensions of each head of `x` [B, L, heads, D]; the others pass.

        Computed in the dtype of `x`. Queries and keys may be rotated as one tensor: the cost is in
        the number of operations, not in their size.
        """
        d = self.cos.shape[-1]
        if d == x.shape[-1]:
            return torch.addcmul(x * self.cos, torch.roll(x, d // 2, -1), self.sin)
        return torch.cat((self.rotate(x[..., :d]), x[..., d:]), -1)
