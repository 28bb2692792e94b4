"""The C++ kernels' layout of weights, read back by plain torch (06 KER-1, LIN-3)."""

import pytest
import torch

from fixtures.kernels_parity import random_affine
from fixtures.native_kernels import native_library
from forerun.kernels.dequantise.reference import dequantise
from forerun.kernels.native.packed import PackedLinear, repacked
from forerun.kernels.operands import AffineWeight


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(1, 32, 32), (33, 192, 64), (16, 384, 128), (40, 96, 96)])
def test_repacked_values_are_those_of_the_words(
    shape: tuple[int, int, int], bits: int, wide: bool
) -> None:
    """06 KER-1, LIN-3: to the bit."""
    rows, columns, group = shape
    weight = random_affine(rows, columns, bits=bits, group=group)
    if wide:
        weight = AffineWeight(weight.words, weight.scale.float() * 1.0001, weight.bias, bits)
    made = repacked(native_library(), weight)
    assert made.wide_terms == wide
    assert torch.equal(dequantise(made, torch.float32), dequantise(weight, torch.float32))


def test_a_weight_of_another_size_than_its_shape_is_caught() -> None:
    """06 KER-1: before a kernel reads beyond its end."""
    made = repacked(native_library(), random_affine(16, 64, bits=4, group=32))
    short = type(made)(made.data[:-1], 16, 64, 32, 4, made.wide_terms)
    with pytest.raises(AssertionError, match="bytes instead of"):
        PackedLinear(native_library(), short)
