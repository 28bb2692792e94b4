"""The memory that kernels work in: one a thread, whatever calls from it. 05 LOD-6."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from fixtures.kernels_parity import random_affine
from fixtures.native_kernels import native_library
from forerun.kernels.linear_affine.native import NativeLinear
from forerun.kernels.native import scratch
from forerun.kernels.output_head.native import NativeHead

WIDTH, COLUMNS = 64, 1024
X = torch.randn(WIDTH, COLUMNS, generator=torch.Generator().manual_seed(2))


def test_many_linears_and_heads_work_in_the_memory_of_the_largest_need() -> None:
    native_library()

    def taken() -> tuple[int, int]:
        """Of a thread that calls the widest kernel last, and then all of them again."""
        linears = [
            NativeLinear(random_affine(33, n, bits=4, group=32), 2) for n in range(64, 1025, 64)
        ]
        head = NativeHead(random_affine(40, COLUMNS, bits=8, group=32), 2)
        first = [linear(X[:, : 64 * n]) for n, linear in enumerate(linears, 1)]
        head.best(X, 5)
        size = scratch.of_thread().size
        again = [linear(X[:, : 64 * n]) for n, linear in enumerate(linears, 1)]
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        return size, scratch.of_thread().size

    with ThreadPoolExecutor(1) as other:
        size, after = other.submit(taken).result(timeout=60)
    needed = native_library().linear_scratch(COLUMNS, WIDTH)
    needed = max(needed, native_library().head_scratch(COLUMNS, WIDTH, 5, 2))
    assert size == after == needed


def test_threads_do_not_share_it() -> None:
    """Both are alive: what one of them reserved may not be the other's."""
    both = threading.Barrier(2, timeout=60)

    def reserved(size: int) -> tuple[int, int]:
        mine = scratch.of_thread()
        both.wait()
        address = mine.reserve(size)
        both.wait()
        assert scratch.of_thread() is mine
        return mine.size, address

    with ThreadPoolExecutor(2) as others:
        one, two = others.map(reserved, (4096, 8192))
    assert (one[0], two[0]) == (4096, 8192)
    assert one[1] != two[1]


def test_it_grows_and_stays() -> None:
    lent = scratch.Scratch()
    small = lent.reserve(100)
    assert (lent.reserve(10), lent.size) == (small, 100)
    assert lent.reserve(1000) == lent.address
    assert lent.size == 1000
