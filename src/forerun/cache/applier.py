"""What a sliding window adds to a model's mask (spec 01 RAP)."""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.contract.mask import Mask


@dataclass(frozen=True, slots=True)
class WindowApplier:
    """A query at position p sees positions above `p - window`, and none later than p unless a
    rectangle of the mask says so (RAP-3).

    The columns hold positions `oldest`, `oldest + 1`, ... and the queries are the last of them.
    """

    window: int
    oldest: int
    columns: int

    @property
    def key(self) -> Hashable:
        return self

    def needed(self, width: int) -> bool:
        assert width <= self.columns, (width, self.columns)
        return self.columns > self.window

    def apply(self, mask: Mask, visible: Tensor, positions: Tensor) -> Tensor:
        end = self.oldest + self.columns
        column = torch.arange(self.oldest, end, dtype=torch.int64, device=positions.device)
        query = positions[:, None, :, None]
        seen = visible & (column > query - self.window)
        return seen if mask.causal else seen & (column <= query)
