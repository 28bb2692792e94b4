"""What a forward attends over and where it writes: data handed out by attention caches."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from forerun.contract.mask import Mask


class MaskApplier(Protocol):
    """What a cache adds to the model's mask because of how it stores rows (spec 01 RAP).

    Two appliers with equal `key` do the same, so layers that share one share a mask tensor.
    """

    @property
    def key(self) -> Hashable: ...

    def needed(self, width: int) -> bool:
        """Whether `width` queries need any mask of this cache's at all."""
        ...

    def apply(self, mask: Mask, visible: Tensor, positions: Tensor) -> Tensor:
        """Restrict `visible` further.

        mask       the model's logical mask, whose rectangles may lift the causal rule
        visible    [B, 1, L, K] bool, True = attend: the logical mask, laid over the columns
        positions  [B, L] int64 of the queries
        returns    [B, 1, L, K] bool
        """
        ...


@dataclass(frozen=True, slots=True)
class History:
    """Keys and values that a forward attends over (spec 01 WRT-7).

    Laws
    1. Columns at or beyond `live` are uninitialised memory, NaN included: no result may depend
       on them.
    2. Column k holds position `positions[..., k]`, or `oldest + k` where `positions` is None.
    3. It is valid until the end of the forward that asked for it. Nobody stores it.
    """

    keys: Tensor  # [B, heads, K, Dk], K >= live
    values: Tensor  # [B, heads, K, Dv]
    live: int  # columns that hold rows; the largest of the batch's rows
    oldest: int = 0  # position of column 0, when columns are in position order
    positions: Tensor | None = None  # [B or 1, K] int64, for storage in any other order
    lengths: Tensor | None = None  # [B] int64 live columns of each row, where rows differ
    live_length: Tensor | None = None  # [1] int64 device copy of `live`, for captured graphs
    applier: MaskApplier | None = None  # None: the cache has nothing to add to the model's mask


@dataclass(frozen=True, slots=True)
class Write:
    """Where a forward puts its n new rows, and what it then attends over (spec 01 WRT-1).

    Row i goes to index `index[..., i]` of `keys` and `values` where `index` is given, else to
    `first_index + i`. A fused kernel needs nothing but these fields: pointers and strides of the
    two buffers, `first_index`, `history.live`, `history.oldest` and `window`. Valid until
    `end_write`. Where `index` is not given, the history's columns are the `live` last ones up to
    `first_index + n`.
    """

    keys: Tensor  # [B, heads, capacity, Dk]: the live buffer, or staging for a chunk past the slack
    values: Tensor  # [B, heads, capacity, Dv]
    first_index: int
    history: History  # includes the n rows, which the caller stores before it reads them
    index: Tensor | None = None  # [n] or [B, n] int64 on the device, at a fixed address
    window: int | None = None  # positions a query sees, itself included; None: all before it

    def store(self, keys: Tensor, values: Tensor) -> None:
        """Copy `[B, heads, n, D]` rows to their indices; what a fused kernel does by itself."""
        if self.index is None:
            first, end = self.first_index, self.first_index + keys.shape[2]
            self.keys[:, :, first:end] = keys
            self.values[:, :, first:end] = values
        elif self.index.dim() == 1:
            self.keys.index_copy_(2, self.index, keys)
            self.values.index_copy_(2, self.index, values)
        else:
            self.keys.scatter_(2, self.index[:, None, :, None].expand_as(keys), keys)
            self.values.scatter_(2, self.index[:, None, :, None].expand_as(values), values)
