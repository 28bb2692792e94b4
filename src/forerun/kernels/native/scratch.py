"""Memory that kernels work in, lent by whoever calls them."""

import threading

import torch


class Scratch:
    """One buffer, grown to the largest need so far: a steady state allocates nothing."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self.address = 0

    @property
    def size(self) -> int:
        return self._buffer.nbytes

    def reserve(self, size: int) -> int:
        """The address, of at least `size` bytes; it may change, and nothing in them is kept."""
        if size > self._buffer.nbytes:
            self._buffer = torch.empty(size, dtype=torch.uint8)
            self.address = self._buffer.data_ptr()
        return self.address


def of_thread() -> Scratch:
    """The calling thread's, for all kernels that it calls, kept as long as the thread lives.

    None needs what is in it after its call: each reserves what it needs before the next.
    """
    return _threads.scratch


class _Threads(threading.local):
    def __init__(self) -> None:
        self.scratch = Scratch()


_threads = _Threads()
