"""Linears over block-scaled weights: mxfp4 in kernels for integers, the rest dequantised.

LIN-3, LIN-8 (dequantising), KER-1. mxfp4 inherits WID-1 from the integer kernels; what dequantises
is compared by the near-tie rule.
"""

import pytest
import torch
from torch import Tensor

from fixtures.kernels_parity import assert_within, poisoned_allocations
from fixtures.native_kernels import native_library
from forerun.kernels.dequantise.affine_form import as_affine, why_not
from forerun.kernels.dequantise.reference import dequantise, unpack
from forerun.kernels.linear_affine.native import NativeLinear
from forerun.kernels.linear_affine.reference import ReferenceLinear
from forerun.kernels.linear_affine.torch_int4 import TorchInt4Linear
from forerun.kernels.operands import BlockScaledWeight
from forerun.kernels.output_head.native import NativeHead

GROUPS = {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}
SHAPES = [(1, 64, 64), (5, 16, 32), (3, 33, 96), (2, 1, 128), (0, 48, 64)]  # rows, outputs, inputs


def random_weight(kind: str, rows: int, columns: int, *, scales: range) -> BlockScaledWeight:
    seeded = torch.Generator().manual_seed(3)
    bits = 8 if kind == "mxfp8" else 4
    octets = torch.randint(0, 256, (rows, columns * bits // 8), generator=seeded)
    if kind == "mxfp8":
        octets[octets % 128 == 127] = 3  # of e4m3, the codes of NaN
    shape = (rows, columns // GROUPS[kind])
    scale = torch.randint(scales.start, scales.stop, shape, generator=seeded)
    words = octets.to(torch.uint8).view(torch.uint32)
    return BlockScaledWeight(words, scale.to(torch.uint8), kind)


def ordinary(kind: str, rows: int, columns: int) -> BlockScaledWeight:
    scales = range(8, 70) if kind == "nvfp4" else range(115, 124)
    return random_weight(kind, rows, columns, scales=scales)


def activations(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def every_scale() -> BlockScaledWeight:
    """A row for each scale that has an integer form, in each all sixteen codes twice."""
    codes = torch.arange(16, dtype=torch.uint8) * 17  # each in both halves of a byte
    scale = torch.arange(252, dtype=torch.uint8)[:, None]
    return BlockScaledWeight(codes.repeat(252, 1).view(torch.uint32), scale, "mxfp4")


def test_the_integer_form_of_mxfp4_has_the_same_values_bit_for_bit() -> None:
    """LIN-3: for every code under every scale up to 2**124."""
    weight = every_scale()
    assert why_not(weight) is None
    values = dequantise(weight, torch.float32)
    assert values.isfinite().all()
    assert values.unique().numel() > 250
    form = as_affine(weight)
    assert (form.bits, form.group) == (8, 32)
    assert unpack(form.words, 8).max() == 24
    assert torch.equal(dequantise(form, torch.float32), values)


@pytest.mark.parametrize("scale", [252, 254, 255])
def test_scales_that_its_terms_cannot_hold_have_no_integer_form(scale: int) -> None:
    weight = every_scale()
    weight.scale[7] = scale
    reason = why_not(weight)
    assert reason is not None
    assert "scales above" in reason


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp8"])
def test_other_kinds_have_none(kind: str) -> None:
    assert why_not(ordinary(kind, 2, 32)) == f"there is no integer form of {kind}"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", GROUPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_reference_is_the_exact_product(
    kind: str, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    """KER-1, LIN-8: all values are exact in both dtypes, so that only sums and the result round."""
    rows, outputs, inputs = shape
    weight, x = ordinary(kind, outputs, inputs), activations(rows, inputs).to(dtype)
    values = dequantise(weight, torch.float32)
    assert torch.equal(values.bfloat16().float(), values)
    want = x.double() @ values.double().T
    unit = {torch.float32: 2**-24, torch.bfloat16: 2**-8}[dtype]
    bound = unit * want.abs() + inputs * 2**-23 * (x.double().abs() @ values.double().abs().T)
    assert_within(ReferenceLinear(weight)(x), want, bound)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_integer_kernels_take_mxfp4_as_they_take_its_affine_form(
    shape: tuple[int, int, int],
) -> None:
    """KER-1, WID-1: the same bits, and the reference within the rounding of activations."""
    native_library()
    rows, outputs, inputs = shape
    weight, x = ordinary("mxfp4", outputs, inputs), activations(rows, inputs)
    form = as_affine(weight)
    with poisoned_allocations():
        linear, head = NativeLinear(weight, 2)(x), NativeHead(weight, 2)(x)
        packed = TorchInt4Linear(weight, torch.bfloat16)(x.bfloat16())
    assert torch.equal(linear, NativeLinear(form, 2)(x))
    assert torch.equal(head, NativeHead(form, 2)(x))
    assert torch.equal(packed, TorchInt4Linear(form, torch.bfloat16)(x.bfloat16()))
    values = dequantise(weight, torch.float32).double()
    step = x.double().abs().amax(-1, keepdim=True) / 32639
    summed = 2**-22 * inputs * (x.double().abs() @ values.abs().amax(0).expand_as(values).T)
    bound = (step / 2).expand(rows, inputs) @ values.abs().T * 1.01 + summed
    assert_within(linear, x.double() @ values.T, bound)


def test_a_table_in_mxfp4_behind_the_head_keeps_its_values() -> None:
    """LIN-5"""
    native_library()
    weight = ordinary("mxfp4", 40, 64)
    ids = torch.tensor([3, 39, 3])
    got = NativeHead(weight, 1).rows(ids)
    assert torch.equal(got, dequantise(weight, torch.float32)[ids])
