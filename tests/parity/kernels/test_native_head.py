"""The C++ output head: final norm, logits and the best of them. 06 KER-1, and 06 WID-7 for it."""

import numpy as np
import pytest

from fixtures.native_kernels import ISAS, head, packed, random_weight, rounded, team


@pytest.mark.parametrize("isa", ISAS)
def test_logits_and_the_best_of_them(isa: str) -> None:
    """06 KER-1, WID-1, WID-3, WID-7."""
    random = np.random.default_rng(2)
    weight = random_weight(random, 1003, 96, bits=8)
    norm = random.random(96).astype(np.float32)
    x = random.standard_normal((20, 96)).astype(np.float32)
    whole, *_ = head(team(1, "scalar"), weight, x, norm=norm)
    normed = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-5) * norm
    want = weight.applied(rounded(normed))
    assert np.abs(whole - want).max() < 1e-4 * np.abs(want).max()
    for threads in (1, 2, 3):
        for width in (*range(1, 17), 20):
            y, ids, values = head(team(threads, isa), weight, x[:width], norm=norm, top=9)
            assert np.array_equal(y, whole[:width]), (threads, width)
            order = np.argsort(-y, axis=1, kind="stable")[:, :9]
            assert np.array_equal(ids, order)
            assert np.array_equal(values, np.take_along_axis(y, order, 1))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_of_equal_logits_the_smaller_id_is_better(isa: str, threads: int) -> None:
    """06 WID-3: whichever thread found it; -1 where there are fewer numbers than asked for."""
    ones = np.ones((50, 3), np.float32)
    weight = packed(np.zeros((50, 96), np.uint8), ones, ones, bits=8)
    _, ids, _ = head(team(threads, isa), weight, np.ones((2, 96), np.float32), top=60)
    assert ids.tolist() == [[*range(50), *[-1] * 10]] * 2


def test_sixteen_threads_change_neither_logits_nor_the_best() -> None:
    """06 WID-3: whichever of them found it."""
    random = np.random.default_rng(8)
    weight = random_weight(random, 130, 96, bits=8)
    x = random.standard_normal((5, 96)).astype(np.float32)
    alone, together = (head(team(threads), weight, x, top=9) for threads in (1, 16))
    for got, want in zip(together, alone, strict=True):
        assert np.array_equal(got, want)
