"""Memory that packed weights lie in, in large pages where the system grants them.

Weights of tens of megabytes are read once a token: with pages of 4 KB, a fifth of the time goes to
finding them (measured: 29 GB/s against 24 by one thread).
"""

import mmap
import sys
from contextlib import suppress

import torch
from torch import Tensor

ALIGNMENT = 64  # bytes, of a cache line
LARGE_PAGE = 2 << 20  # bytes, on x86 and most of ARM


def weight_memory(size: int) -> Tensor:
    """`size` bytes (uint8) from the start of a cache line on; what they hold is undefined."""
    if size >= LARGE_PAGE and sys.platform == "linux":
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without large pages
            pages.madvise(mmap.MADV_HUGEPAGE)
        return torch.frombuffer(pages, dtype=torch.uint8)
    memory = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
    start = -memory.data_ptr() % ALIGNMENT
    return memory[start : start + size]


class Room:
    """Memory for several weights, which alone would be too small for a large page."""

    def __init__(self, size: int) -> None:
        """size: of all of them; what is never written costs nothing where pages are mapped."""
        self._memory, self._used = weight_memory(size), 0

    def take(self, size: int) -> Tensor:
        """The next `size` bytes, from the start of a cache line on."""
        first = -(-self._used // ALIGNMENT) * ALIGNMENT
        self._used = first + size
        assert self._used <= self._memory.nbytes, f"no room for {size} more bytes"
        return self._memory[first : self._used]
