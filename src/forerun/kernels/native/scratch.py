"""Memory that kernels work in, lent by whoever calls them."""

import torch


class Scratch:
    """One buffer, grown to the largest need so far: a steady state allocates nothing."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self.address = 0

    @property
    def size(self) -> int:
        return self._buffer.nbytes

    def reserve(self, size: int) -> None:
        """Make it at least `size` bytes; `address` may change, and nothing in it is kept."""
        if size > self._buffer.nbytes:
            self._buffer = torch.empty(size, dtype=torch.uint8)
            self.address = self._buffer.data_ptr()
