"""Packing and affine quantisation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.base.errors import ImportFailedError
from forerun.base.quantisation import BITS
from forerun.kernels.dequantise.reference import unpack
from forerun.quant.codec import pack, quantise
from forerun.quant.formats import AFFINE_BITS, AFFINE_GROUPS, GROUPS, QuantFormat


def test_the_lowest_column_has_the_lowest_bits() -> None:
    """PLN-5: the layout of MLX."""
    assert pack(torch.arange(8, dtype=torch.uint8), 4).tolist() == [0x76543210]
    assert pack(torch.tensor([1, 2, 3, 255], dtype=torch.uint8), 8).tolist() == [0xFF030201]


@given(
    bits=st.sampled_from([4, 8]),
    rows=st.integers(0, 3),
    words=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_unpacking_gives_back_what_was_packed(bits: int, rows: int, words: int, seed: int) -> None:
    """For every shape: unpack(pack(codes)) == codes."""
    seeded = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 2**bits, (rows, words * 32 // bits), generator=seeded)
    codes = codes.to(torch.uint8)
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint32
    assert packed.shape == (rows, words)
    assert torch.equal(unpack(packed, bits), codes)


@pytest.mark.parametrize("name", AFFINE_BITS)
@pytest.mark.parametrize("group", AFFINE_GROUPS)
@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_no_value_is_further_off_than_half_a_step_and_its_terms(
    name: str, group: int, scale_dtype: torch.dtype
) -> None:
    """LIN-3: int4 and int8 in groups of 32, 64 and 128."""
    values = torch.randn(6, 2 * group, generator=torch.Generator().manual_seed(0))
    weight = quantise(values, QuantFormat(name, group), scale_dtype)
    assert weight.data.group == group
    unit = torch.finfo(scale_dtype).eps / 2
    spread = values.view(6, 2, group).aminmax(dim=-1)
    span = (spread.max - spread.min).repeat_interleave(group, -1)
    lowest = spread.min.abs().repeat_interleave(group, -1)
    # half a step, the last code's reach under a rounded scale, and the rounded lowest value
    bound = span / (2 ** AFFINE_BITS[name] - 1) / 2 + unit * (2 * span + lowest) + 1e-6
    assert ((weight.dequantise(torch.float32) - values).abs() <= bound).all()


def test_values_on_the_grid_are_kept() -> None:
    codes = torch.arange(16).repeat(2).float()
    values = torch.stack((codes * 0.5 - 4, codes * 0 + 3, codes * 0))
    weight = quantise(values, QuantFormat("int4", 32))
    assert torch.equal(weight.dequantise(torch.float32), values)


def test_a_group_of_one_value_is_all_zero_codes() -> None:
    """Also where fp16 rounds the value, so that it differs from its zero point."""
    weight = quantise(torch.full((1, 32), 3.1), QuantFormat("int4", 32))
    assert not unpack(weight.data.words, 4).any()


def test_codes_make_up_for_the_rounding_of_the_zero_point() -> None:
    """fp16 knows no 1000.3: only the lowest value pays for that, and not its whole group."""
    values = torch.cat((torch.tensor([1000.3, 1010.3]), torch.linspace(1001, 1010, 30)))[None]
    weight = quantise(values, QuantFormat("int8", 32))
    error = (weight.dequantise(torch.float32) - values).abs()
    assert (error[0, 2:] <= 0.51 * 10 / 255).all()


def test_groups_that_do_not_divide_the_columns_are_refused() -> None:
    """LIN-3"""
    with pytest.raises(ImportFailedError, match="48 columns do not make up groups of 32"):
        quantise(torch.zeros(2, 48), QuantFormat("int4", 32))


def test_values_that_no_scale_can_hold_are_refused() -> None:
    """F13: the error names a type that holds them, which it does."""
    values = torch.full((1, 32), 1e6)
    with pytest.raises(ImportFailedError, match=r"do not fit.*quantize to mxfp8"):
        quantise(values, QuantFormat("int8", 32))
    held = quantise(values, QuantFormat("mxfp8", 32)).dequantise(torch.float32)
    assert torch.allclose(held, values, rtol=1 / 16)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", BITS)
def test_values_that_are_no_numbers_are_refused(name: str, value: float) -> None:
    """F13"""
    values = torch.zeros(2, 64)
    values[1, 40] = value
    with pytest.raises(ImportFailedError, match="no finite numbers"):
        quantise(values, QuantFormat(name, GROUPS[name][0]))
