"""A decoder layer in plain torch against the C++ kernel that it gives the meaning of (06 KER-1).

The kernel rounds activations, so that it may be as far from the reference as the reference with
rounded activations is: the tolerance is twice that, plus what keys and values at a tie of their
dtype make where they are rounded the other way.
"""

import pytest
import torch
from torch import Tensor

from fixtures.layer_operands import HIDDEN, empty_rows, family_layer, rounded_product, turns_of
from fixtures.native_kernels import native_library
from forerun.kernels.decoder_layer.native import NativeLayers
from forerun.kernels.decoder_layer.reference import Place, Product, attention_layer, exact_product
from forerun.kernels.layer_operands import LayerOperands

FAMILIES = ["llama", "qwen3", "qwen3.5", "gemma3"]
TIES = {torch.float32: 1e-5, torch.bfloat16: 2**-8}  # of the largest number of the stream
DEAD, LENGTH = 5, 40  # rows of the buffers before the first live one; tokens
Answer = tuple[Tensor, Tensor, Tensor]  # what left the layer, and the rows that it wrote


def tokens() -> Tensor:
    return torch.randn(LENGTH, HIDDEN, generator=torch.Generator().manual_seed(2))


def places(width: int) -> list[Place]:
    """Of all tokens, `width` at a time, at positions from 100 on."""
    firsts = range(0, LENGTH, width)
    widths = [min(width, LENGTH - first) for first in firsts]
    return [
        Place(wide, DEAD + first, first + wide, 100)
        for first, wide in zip(firsts, widths, strict=True)
    ]


def by_reference(
    layer: LayerOperands, dtype: torch.dtype, width: int, product: Product = exact_product
) -> Answer:
    stream, rows = tokens(), empty_rows(layer, DEAD + LENGTH + 3, dtype)
    for at in places(width):
        here = slice(at.first_row - DEAD, at.first_row - DEAD + at.width)
        turns = turns_of(layer, at.first_position + here.start, at.width)
        attention_layer(layer, stream[here], turns, rows, at, product=product)
    return stream, *rows


def in_cpp(layer: LayerOperands, dtype: torch.dtype, width: int) -> Answer:
    native_library()
    kernels = NativeLayers([layer], dtype, 2)
    stream, rows = tokens(), empty_rows(layer, DEAD + LENGTH + 3, dtype)
    for at in places(width):
        here = slice(at.first_row - DEAD, at.first_row - DEAD + at.width)
        cosines, sines = turns_of(layer, at.first_position + here.start, at.width)
        kernels.enter(stream[here], at.width, [(cosines.data_ptr(), sines.data_ptr())])
        kernels.layers[0].place(
            *rows, first_row=at.first_row, live=at.live, first_position=at.first_position
        )
        kernels.run(0, 1)
    return stream, *rows


def furthest(one: Tensor, other: Tensor) -> float:
    """Of numbers that both have; where one has none, neither has the other."""
    assert torch.equal(one.isnan(), other.isnan())
    return float((one.double() - other.double()).nan_to_num().abs().max())


@pytest.mark.parametrize("dtype", TIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernel_is_the_reference(family: str, dtype: torch.dtype) -> None:
    """06 KER-1: the stream, and the rows that are kept; NaN stays wherever nothing is written."""
    layer = family_layer(family)
    want = by_reference(layer, dtype, LENGTH)
    coarse = by_reference(layer, dtype, LENGTH, rounded_product)
    for ours, theirs, other in zip(in_cpp(layer, dtype, 7), want, coarse, strict=True):
        largest = float(theirs.nan_to_num().abs().max())
        assert furthest(ours, theirs) <= 2 * furthest(other, theirs) + TIES[dtype] * largest


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_in_chunks_is_that_of_the_whole(family: str) -> None:
    """06 WID-5: within the rounding of float32 sums."""
    layer = family_layer(family)
    whole = by_reference(layer, torch.float32, LENGTH)
    for width in (1, 7):
        for ours, theirs in zip(by_reference(layer, torch.float32, width), whole, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)
