"""PyTorch's packed int4 product against the dequantising reference (KER-1, LIN-3)."""

import pytest
import torch
from torch import Tensor

from fixtures.kernels_parity import assert_within, poisoned_allocations, random_affine
from forerun.kernels.dequantise.reference import unpack
from forerun.kernels.linear_affine import torch_int4
from forerun.kernels.linear_affine.reference import ReferenceLinear
from forerun.kernels.linear_affine.torch_int4 import TorchInt4Linear
from forerun.kernels.operands import AffineWeight

BF16 = 2**-8  # half a unit in the last place, relative

SHAPES = [  # rows of x, outputs, inputs, group
    (1, 64, 64, 32),
    (5, 16, 32, 32),  # one group
    (3, 33, 96, 32),  # outputs that fill no multiple of 16
    (2, 1, 128, 128),  # one output
    (4, 200, 192, 64),
    (17, 80, 256, 128),
    (0, 48, 64, 32),  # no rows
]


def exact(weight: AffineWeight, x: Tensor) -> tuple[Tensor, Tensor]:
    """The product in float64, and how far the kernel may be from it.

    Scale and middle value are rounded to bfloat16 (each value moves by that share of its two
    terms), sums are kept in float32 (each term adds 2**-24 of what was summed, and the halves of an
    int8 code are up to 16 times the value), and the result is rounded once.
    """
    codes = unpack(weight.words, weight.bits).double().view(*weight.scale.shape, -1)
    scale, middle = weight.scale.double()[..., None], 2.0 ** (weight.bits - 1)
    bias = torch.zeros_like(scale) if weight.bias is None else weight.bias.double()[..., None]
    values = (codes * scale + bias).flatten(1)
    moved = (((codes - middle) * scale).abs() + (bias + middle * scale).abs()).flatten(1)
    x = x.double()
    want = x @ values.T
    summed = x.abs() @ (2 * middle * scale + bias.abs()).expand_as(codes).flatten(1).T
    share = weight.in_features * 2**-24 * 16
    return want, BF16 * (x.abs() @ moved.T) * 1.01 + BF16 * want.abs() * 1.01 + share * summed


def activations(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).bfloat16()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_packed_product_is_the_reference(shape: tuple[int, ...], bits: int) -> None:
    """KER-1, LIN-3"""
    rows, outputs, inputs, group = shape
    weight = random_affine(outputs, inputs, bits=bits, group=group)
    x = activations(rows, inputs)
    with poisoned_allocations():
        kernel = TorchInt4Linear(weight, torch.bfloat16)
        got = kernel(x)
    assert got.dtype == torch.bfloat16
    assert_within(got, *exact(weight, x))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_reference_is_the_exact_product(bits: int, dtype: torch.dtype) -> None:
    """KER-1: within the rounding of each value and of the result to the activations' dtype."""
    weight = random_affine(33, 96, bits=bits, group=32)
    x = activations(4, 96).to(dtype)
    want, _ = exact(weight, x)
    unit = {torch.float32: 2**-20, torch.bfloat16: BF16, torch.float16: 2**-11}[dtype]
    values = weight.scale.double().repeat_interleave(32, -1) * 2**bits
    bound = unit * (x.abs().double() @ values.T) + unit * want.abs()
    assert_within(ReferenceLinear(weight)(x), want, bound)


@pytest.mark.parametrize("bits", [4, 8])
def test_symmetric_weights_have_no_bias(bits: int) -> None:
    with_bias = random_affine(16, 64, bits=bits, group=32)
    weight = AffineWeight(with_bias.words, with_bias.scale, None, bits)
    x = activations(2, 64)
    assert_within(TorchInt4Linear(weight, torch.bfloat16)(x), *exact(weight, x))


@pytest.mark.parametrize("bits", [4, 8])
def test_strided_rows_and_more_axes(bits: int) -> None:
    weight = random_affine(24, 64, bits=bits, group=32)
    x = activations(2, 3, 128)
    kernel = TorchInt4Linear(weight, torch.bfloat16)
    for part in (x[..., :64], x[..., 64:], x.transpose(0, 1)[..., :64]):
        assert torch.equal(kernel(part), kernel(part.contiguous()))
        assert kernel(part).shape == (*part.shape[:-1], 24)


@pytest.mark.parametrize("magnitude", [2e-3, 1e4])
@pytest.mark.parametrize("bits", [4, 8])
def test_extreme_weights(bits: int, magnitude: float) -> None:
    """Scales at both ends of fp16, its subnormals included."""
    weight = random_affine(32, 64, bits=bits, group=32, magnitude=magnitude)
    x = activations(3, 64)
    assert_within(TorchInt4Linear(weight, torch.bfloat16)(x), *exact(weight, x))


@pytest.mark.parametrize("magnitude", [1e-30, 1e30])
def test_extreme_activations(magnitude: float) -> None:
    weight = random_affine(32, 64, bits=4, group=32)
    x = activations(3, 64) * magnitude
    assert_within(TorchInt4Linear(weight, torch.bfloat16)(x), *exact(weight, x))


def test_values_of_power_of_two_scales_are_kept_to_the_bit() -> None:
    """The halves of an int8 weight lose nothing: unit activations read out each value."""
    scale = torch.full((16, 2), 2.0**-7).half()
    codes = torch.arange(16 * 64, dtype=torch.int64).mul(37).remainder(256).to(torch.uint8)
    weight = AffineWeight(codes.view(16, 64).view(torch.uint32), scale, -128 * scale, 8)
    got = TorchInt4Linear(weight, torch.bfloat16)(torch.eye(64).bfloat16())
    assert torch.equal(got.float().T, (codes.view(16, 64).float() - 128) * 2.0**-7)


@pytest.mark.parametrize("bits", [4, 8])
def test_packing_in_chunks_is_packing_at_once(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """05 LOD-4: packing copies a part at a time, also where the last part is odd."""
    weight = random_affine(333, 64, bits=bits, group=32)
    x = activations(2, 64)
    whole = TorchInt4Linear(weight, torch.bfloat16)(x)
    monkeypatch.setattr(torch_int4, "_CHUNK_ROWS", 64)
    with poisoned_allocations():
        in_parts = TorchInt4Linear(weight, torch.bfloat16)
    assert torch.equal(in_parts(x), whole)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_kernel_holds_no_more_than_its_own_layout(bits: int) -> None:
    weight = random_affine(64, 256, bits=bits, group=32)
    kernel = TorchInt4Linear(weight, torch.bfloat16)
    terms = 64 * (256 // 32) * (bits // 4) * 2 * 2
    assert kernel.nbytes == weight.words.nbytes + terms
