"""A single linear in C++ behind torch tensors against the dequantising reference.

06 KER-1, LIN-3; 06 WID-7 for it. What the kernel is over plain arrays: `test_native_linear.py`.
"""

import pytest
import torch
from torch import Tensor

from fixtures.kernels_parity import assert_within, poisoned_allocations, random_affine
from fixtures.native_kernels import native_library
from forerun.kernels.dequantise.reference import dequantise
from forerun.kernels.linear_affine import native
from forerun.kernels.linear_affine.native import NativeLinear
from forerun.kernels.operands import AffineWeight

STEPS = 32639  # to the largest activation of a row
RESULT = {torch.bfloat16: 2**-8, torch.float32: 2**-24}  # half a unit in the last place
SHAPES = [(1, 64, 64, 32), (5, 16, 32, 32), (17, 33, 192, 64), (2, 1, 128, 128), (0, 48, 64, 32)]


@pytest.fixture(autouse=True)
def _built() -> None:
    native_library()


def activations(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def exact(weight: AffineWeight, x: Tensor) -> tuple[Tensor, Tensor]:
    """The product in float64, and how far the kernel may be from it.

    An activation moves by half a step of its row, sums are kept in float32 (2**-24 of what was
    summed for each term), and the result is rounded once.
    """
    values, wide = dequantise(weight, torch.float32).double(), x.double()
    step = wide.abs().amax(-1, keepdim=True) / STEPS
    moved = step / 2 + wide.abs() * 2**-20
    largest = weight.scale.double().repeat_interleave(weight.group, -1) * 2**weight.bits
    want = wide @ values.T
    summed = 2**-24 * weight.in_features * (wide.abs() @ largest.T)
    return want, moved @ values.T.abs() + summed + RESULT[x.dtype] * 1.01 * want.abs()


@pytest.mark.parametrize("dtype", RESULT)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_reference(shape: tuple[int, ...], bits: int, dtype: torch.dtype) -> None:
    """06 KER-1, LIN-3: no rows, one output, outputs that fill no block."""
    rows, outputs, inputs, group = shape
    weight = random_affine(outputs, inputs, bits=bits, group=group)
    x = activations(rows, inputs, dtype=dtype)
    with poisoned_allocations():
        got = NativeLinear(weight, 2)(x)
    assert got.dtype == dtype
    assert_within(got, *exact(weight, x))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_is_the_same_at_every_width(bits: int, threads: int) -> None:
    """06 WID-1, WID-3, WID-7: at every place of widths 1 to 16, and of a wide forward."""
    weight, x = random_affine(33, 96, bits=bits, group=32), activations(40, 96)
    kernel, alone = NativeLinear(weight, threads), NativeLinear(weight, 1)
    whole = torch.cat([alone(row) for row in x.split(1)])
    for width in (*range(1, 17), 40):
        for first in range(0, 40 - width + 1, width):
            part = slice(first, first + width)
            assert torch.equal(kernel(x[part]), whole[part]), (width, first)


def test_strided_rows_and_more_axes() -> None:
    kernel, x = NativeLinear(random_affine(24, 64, bits=4, group=32), 2), activations(2, 3, 128)
    for part in (x[..., :64], x[..., 64:], x.transpose(0, 1)[..., :64], x[0, 0, :64]):
        assert torch.equal(kernel(part), kernel(part.contiguous()))
        assert kernel(part).shape == (*part.shape[:-1], 24)


def test_the_result_is_the_callers_own() -> None:
    """A layer adds to it."""
    kernel, x = NativeLinear(random_affine(24, 64, bits=4, group=32), 1), activations(3, 64)
    first = kernel(x)
    kept = first.clone()
    assert torch.equal(kernel(x).zero_() + first, kept)


def test_a_bias_is_added_before_the_result_is_rounded() -> None:
    """06 LIN-1"""
    weight, x = random_affine(24, 64, bits=4, group=32), activations(3, 64)
    bias = activations(24)
    want = (NativeLinear(weight, 1)(x) + bias).bfloat16()
    assert torch.equal(NativeLinear(weight, 1, bias)(x).bfloat16(), want)


def test_it_holds_no_more_than_its_own_layout() -> None:
    weight = random_affine(64, 256, bits=4, group=32)
    terms = 2 * 64 * (256 // 32) * 2  # half precision
    assert NativeLinear(weight, 1).nbytes == weight.words.nbytes + terms


def test_what_it_cannot_serve_is_said() -> None:
    """06 KER-1"""
    weight = random_affine(16, 64, bits=4, group=32)
    assert native.why_not(weight, torch.bfloat16) is None
    assert "torch.float16" in str(native.why_not(weight, torch.float16))
    odd = random_affine(16, 64, bits=4, group=16)
    assert "groups of 16" in str(native.why_not(odd, torch.bfloat16))
