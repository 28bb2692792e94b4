"""Mixtures of experts in C++ against float64, and against themselves at every width.

06 KER-1, KER-3: router, choice, activation and weighted sum in one call with the products; on every
instruction set of this machine, bit for bit alike.
"""

import numpy as np
import pytest

from fixtures.native_experts import (
    SHAPES,
    Mixture,
    mixture_reference,
    random_mixture,
    run_mixture,
)
from fixtures.native_kernels import ISAS, Floats, team


def _stream(length: int, hidden: int, seed: int = 9) -> Floats:
    return np.random.default_rng(seed).standard_normal((length, hidden)).astype(np.float32)


def _furthest(one: Floats, other: Floats) -> float:
    return float(np.abs(one.astype(np.float64) - other).max())


def _check_meaning(mixture: Mixture, x: Floats, got: Floats) -> None:
    """As far from float64 as rounded activations are, twice: codes at ties may fall either way.

    And as float32 sums are: some tens of roundings of numbers no larger than the largest made.
    """
    exact = mixture_reference(mixture, x, lambda rows: rows.astype(np.float64))
    made = np.abs(exact - x).max()
    allowed = 2 * _furthest(mixture_reference(mixture, x), exact) + 1e-5 * made + 1e-6
    assert _furthest(got, exact) <= allowed


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SHAPES)
def test_a_mixture_is_its_meaning_in_float64(name: str, isa: str) -> None:
    """06 KER-1, LIN-8, Q3M-2, QWN-12: router, softmax over all, the best, perhaps a shared one."""
    mixture = random_mixture(SHAPES[name])
    x = _stream(40, mixture.shape.hidden)
    _check_meaning(mixture, x, run_mixture(team(2, isa), mixture, x, 40))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SHAPES)
def test_a_row_is_the_same_at_every_width_and_number_of_threads(name: str, isa: str) -> None:
    """06 WID-1, WID-2, WID-3, WID-7: one by one, or together."""
    mixture = random_mixture(SHAPES[name])
    x = _stream(40, mixture.shape.hidden, seed=10)
    whole = run_mixture(team(1, "scalar"), mixture, x, 40)
    for width in range(1, 17):
        if isa == "scalar" and width not in (1, 4, 16):
            continue  # slow, and of the same source
        got = run_mixture(team(1 + width % 3, isa), mixture, x, width)
        assert got.tobytes() == whole.tobytes(), width
