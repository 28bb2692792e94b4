"""Keys and values side by side, and the shape that a layer's rows have."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Keys `[B, heads, n, key_dim]` and values `[B, heads, n, value_dim]` of n tokens."""

    keys: Tensor
    values: Tensor

    @property
    def count(self) -> int:
        return self.keys.shape[2]

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    @property
    def storage_bytes(self) -> int:
        """What the two tensors keep alive, which for a view is its whole buffer."""
        return sum(part.untyped_storage().nbytes() for part in (self.keys, self.values))

    def part(self, low: int, high: int) -> "Rows":
        """A view of rows `[low, high)`."""
        return Rows(self.keys[:, :, low:high], self.values[:, :, low:high])

    def compact(self) -> "Rows":
        """A copy in storage of its own, which is no larger than the rows (KV-8)."""
        copied = Rows(_cloned(self.keys), _cloned(self.values))
        assert copied.storage_bytes == copied.nbytes
        return copied

    def copy_from(self, other: "Rows") -> None:
        self.keys.copy_(other.keys)
        self.values.copy_(other.values)


def _cloned(rows: Tensor) -> Tensor:
    # `.contiguous()` would return the view itself where nothing needs moving (one head)
    return rows.clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True, slots=True)
class RowShape:
    """What one token's keys and values look like in a layer, and where they live."""

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device
    batch: int = 1  # sequences that advance in step

    @property
    def row_bytes(self) -> int:
        return self.batch * self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize

    def empty(self, capacity: int) -> Rows:
        """Uninitialised rows: on a CPU they take no memory before they are written."""
        where = (self.batch, self.heads, capacity)
        return Rows(
            torch.empty(*where, self.key_dim, dtype=self.dtype, device=self.device),
            torch.empty(*where, self.value_dim, dtype=self.dtype, device=self.device),
        )
