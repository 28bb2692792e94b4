"""What the best of a row of logits are, against Python's sort."""

import math

import pytest
import torch
from torch import Tensor

from fixtures.kernels_parity import random_affine
from forerun.kernels.dequantise.reference import dequantise
from forerun.kernels.output_head.reference import best, logits

ROWS = {
    "of equals the smaller id": [1.0, 3.0, 1.0, 3.0, 3.0, -2.0],
    "infinities are numbers": [-math.inf, 2.0, math.inf, -math.inf],
    "no number before one that is -inf": [math.nan, -math.inf, math.nan, 0.0, -math.inf],
    "no number at all": [math.nan, math.nan],
    "zeros of both signs are equal": [-0.0, 0.0, -0.0],
}


def sorted_best(row: list[float], count: int) -> tuple[list[float], list[int]]:
    numbers = sorted((-value, token) for token, value in enumerate(row) if not math.isnan(value))
    found = numbers[:count] + [(math.inf, -1)] * (count - len(numbers))
    return [-negative for negative, _ in found], [token for _, token in found]


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_the_best_are_by_value_and_then_by_id(row: list[float]) -> None:
    """04 ORD-6, ORD-9: also where more are asked for than there are."""
    for count in range(1, len(row) + 3):
        values, ids = best(torch.tensor([row, row]), count)
        assert (values.tolist(), ids.tolist()) == tuple(
            [part] * 2 for part in sorted_best(row, count)
        )


def test_a_row_is_ranked_alone() -> None:
    rows = torch.randint(-3, 4, (9, 50), generator=torch.Generator().manual_seed(0)).float()
    values, ids = best(rows, 20)
    for row, value, token in zip(rows.tolist(), values.tolist(), ids.tolist(), strict=True):
        assert (value, token) == sorted_best(row, 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_float32_whatever_the_rows_are(dtype: torch.dtype) -> None:
    weight = random_affine(33, 64, bits=8, group=32)
    x: Tensor = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = logits(x, weight)
    assert found.dtype == torch.float32
    want = x.double() @ dequantise(weight, torch.float32).double().T
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)
