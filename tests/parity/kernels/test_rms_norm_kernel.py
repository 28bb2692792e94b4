"""The layer-norm form of the RMS norm against its reference and PyTorch's (KER-1, KER-3)."""

import pytest
import torch
from torch import Tensor

from fixtures.kernels_parity import assert_within
from forerun.kernels.rms_norm.layer_norm_form import MOST_ROWS, LayerNormForm
from forerun.kernels.rms_norm.reference import rms_norm

EPS = 1e-6
# Both sides sum and scale in float32, in another order, and round once. The form subtracts a mean
# that is 0 up to float32 rounding of the row's largest element.
UNIT = {torch.float32: 2**-22, torch.bfloat16: 2**-8, torch.float16: 2**-11}
SHAPES = [(1, 64), (3, 1), (2, 5, 96), (7, 1000), (16, 33), (0, 128), (MOST_ROWS + 1, 24)]


def inputs(shape: tuple[int, ...], dtype: torch.dtype, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    seeded = torch.Generator().manual_seed(0)
    x = (torch.randn(shape, generator=seeded) * scale).to(dtype)
    return x, torch.randn(shape[-1], generator=seeded).to(dtype)


def check(x: Tensor, weight: Tensor | None, eps: float = EPS) -> None:
    got = LayerNormForm(weight, eps)(x)
    want = rms_norm(x.double(), weight, eps).double() if x.numel() else x.double()
    unit = UNIT[x.dtype]
    largest = want.abs().amax(-1, keepdim=True) if x.numel() else want
    assert got.dtype == x.dtype
    assert_within(got, want, 2 * unit * want.abs() + 2**-20 * largest + 1e-9)


@pytest.mark.parametrize("dtype", UNIT, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_form_is_the_reference(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """KER-1, KER-3"""
    x, weight = inputs(shape, dtype)
    check(x, weight)
    check(x, None)
    check(x, 1 + weight.float())


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1e15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_extreme_magnitudes(scale: float, dtype: torch.dtype) -> None:
    check(*inputs((2, 64), dtype, scale))


def test_one_outlier_in_a_row_leaves_the_others_right() -> None:
    x, weight = inputs((2, 576), torch.float32)
    x[:, 7] = 3e4
    check(x, weight)


def test_many_rows_take_the_reference() -> None:
    """Bit for bit, as a few rows do not: the form would read each twice."""
    x, weight = inputs((MOST_ROWS + 1, 1000), torch.float32)
    want = rms_norm(x, weight, EPS)
    assert torch.equal(LayerNormForm(weight, EPS)(x), want)
    assert not torch.equal(LayerNormForm(weight, EPS)(x[:-1]), want[:-1])


def test_strided_rows() -> None:
    x, weight = inputs((4, 256), torch.float32)
    check(x[:, ::2], weight[::2])


def test_a_row_of_zeros_stays_zero() -> None:
    assert torch.equal(LayerNormForm(None, EPS)(torch.zeros(2, 8)), torch.zeros(2, 8))


def test_the_reference_is_torchs() -> None:
    x, weight = inputs((3, 48), torch.float32)
    want = torch.nn.functional.rms_norm(x, (48,), weight, eps=EPS)
    torch.testing.assert_close(rms_norm(x, weight, EPS), want)


def test_the_reference_rounds_once() -> None:
    """GM3-4: the product with the weight is taken in float32."""
    x, weight = inputs((64, 48), torch.bfloat16)
    want = rms_norm(x.float(), weight.float(), EPS).bfloat16()
    assert torch.equal(rms_norm(x, weight, EPS), want)
