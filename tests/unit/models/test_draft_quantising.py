"""A draft's weights in the kernels' formats, quantised some rows at a time."""

import pytest
import torch

from forerun.models.drafts.quantising import (
    CONDITION_FORMAT,
    FORMAT,
    SLAB_BYTES,
    quantised_layer,
    quantised_linear,
)
from forerun.nn.layer_weights import AttentionWeights, Heads, LayerNorms, LayerWeights, MlpWeights
from forerun.nn.linear import LinearWeights
from forerun.nn.norm import RMSNorm
from forerun.quant.codec import quantise
from forerun.quant.formats import QuantFormat
from forerun.quant.packed import PackedWeight


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("form", [FORMAT, CONDITION_FORMAT])
def test_slabs_of_rows_make_the_bits_of_the_whole(form: QuantFormat, dtype: torch.dtype) -> None:
    """LIN-12: over two slabs and a part of one."""
    rows = 5 * SLAB_BYTES // (2 * 256 * dtype.itemsize) + 3
    weight = torch.randn(rows, 256, generator=torch.Generator().manual_seed(1)).to(dtype)
    bias = torch.randn(rows)
    made, whole = quantised_linear(LinearWeights(weight, bias), form), quantise(weight, form)
    assert made.bias is bias
    assert isinstance(made.weight, PackedWeight)
    assert made.weight.format == form
    assert made.weight.zero_points is not None
    assert whole.zero_points is not None
    assert torch.equal(made.weight.data.words.int(), whole.data.words.int())
    assert torch.equal(made.weight.data.scale, whole.data.scale)
    assert torch.equal(made.weight.zero_points, whole.zero_points)


def test_what_is_not_of_whole_groups_stays_as_it_is() -> None:
    """LIN-1: and what is quantised already."""
    uneven = LinearWeights(torch.randn(4, 40), None)
    assert quantised_linear(uneven) is uneven
    packed = LinearWeights(quantise(torch.randn(4, 64), CONDITION_FORMAT), None)
    assert quantised_linear(packed) is packed


def drawn(rows: int, columns: int) -> LinearWeights:
    return LinearWeights(torch.randn(rows, columns), torch.randn(rows))


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "quantised already"])
def test_gate_and_up_come_apart_with_their_biases(packed: bool) -> None:
    """LIN-1: in one tensor or in two, each has the rows and the biases that it had."""
    gate_up = drawn(128, 64)
    if packed:
        gate_up = quantised_linear(gate_up, FORMAT)
    norm = RMSNorm(torch.ones(64), 1e-6)
    layer = LayerWeights(
        index=0,
        epsilon=1e-6,
        norms=LayerNorms(norm, norm),
        mixer=AttentionWeights(
            Heads(1, 1, 64), 0.125, None, 0, None, None, qkv=[drawn(192, 64)], gate=[]
        ),
        output=[drawn(64, 64)],
        feed_forward=MlpWeights("silu", [gate_up], [drawn(64, 64)]),
    )
    made = quantised_layer(layer).feed_forward
    assert isinstance(made, MlpWeights)
    whole = quantised_linear(gate_up, FORMAT).weight
    assert isinstance(whole, PackedWeight)
    values = whole.dequantise(torch.float32)
    for part, rows in zip(made.gate_up, (slice(64), slice(64, 128)), strict=True):
        assert isinstance(part.weight, PackedWeight)
        assert torch.equal(part.weight.dequantise(torch.float32), values[rows])
        assert part.bias is not None
        assert gate_up.bias is not None
        assert torch.equal(part.bias, gate_up.bias[rows])
