"""Block-scaled formats against `ml_dtypes`, which rounds to the small floats by code of its own.

LIN-3: nvfp4 in groups of 16, mxfp4 and mxfp8 in groups of 32.
"""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from forerun.base.errors import ImportFailedError
from forerun.kernels.dequantise.floats import code_values, scale_values
from forerun.kernels.operands import BlockScaledWeight
from forerun.quant.codec import pack, quantise
from forerun.quant.formats import BLOCK_SCALED_GROUP, QuantFormat
from forerun.quant.packed import PackedWeight

BYTES = np.arange(256, dtype=np.uint8)
CODES = {
    "nvfp4": ml_dtypes.float4_e2m1fn,
    "mxfp4": ml_dtypes.float4_e2m1fn,
    "mxfp8": ml_dtypes.float8_e4m3fn,
}
SCALES = {
    "nvfp4": ml_dtypes.float8_e4m3fn,
    "mxfp4": ml_dtypes.float8_e8m0fnu,
    "mxfp8": ml_dtypes.float8_e8m0fnu,
}
LARGEST = {"nvfp4": 6.0, "mxfp4": 6.0, "mxfp8": 448.0}
KINDS = pytest.mark.parametrize("kind", CODES)


def form(kind: str) -> QuantFormat:
    return QuantFormat(kind, BLOCK_SCALED_GROUP[kind])


def quantised(values: Tensor, kind: str) -> PackedWeight:
    return quantise(values, form(kind))


def restored(weight: PackedWeight) -> Tensor:
    return weight.dequantise(torch.float32)


def random_values(rows: int = 40, columns: int = 256, seed: int = 0) -> Tensor:
    """Rows of very different magnitudes, and groups of different ones in a row."""
    seeded = torch.Generator().manual_seed(seed)
    groups = torch.exp(torch.randn(rows, columns // 32, 1, generator=seeded))
    values = torch.randn(rows, columns // 32, 32, generator=seeded) * groups
    return (values * torch.exp(torch.randn(rows, 1, 1, generator=seeded) * 9)).flatten(1)


def octets(words: Tensor) -> np.ndarray:
    return words.view(torch.uint8).numpy()


def codes_of(weight: PackedWeight) -> np.ndarray:
    """[out, in] codes by numpy alone."""
    found = octets(weight.data.words)
    if weight.data.bits == 8:
        return found
    return np.stack((found & 15, found >> 4), -1).reshape(found.shape[0], -1)


def by_hand(weight: PackedWeight) -> np.ndarray:
    """Values in float64."""
    kind = weight.format.name
    codes = codes_of(weight).view(CODES[kind]).astype(np.float64)
    scale = weight.data.scale.numpy().view(SCALES[kind]).astype(np.float64)
    values = codes * scale.repeat(weight.format.group, -1)
    if weight.global_scale is not None:
        values *= weight.global_scale.double().numpy().reshape(-1, 1)
    return values


@KINDS
def test_every_code_and_scale_stands_for_its_value(kind: str) -> None:
    """LIN-3: NaN included, and the sign of zero."""
    octets = torch.from_numpy(BYTES)
    scales = scale_values(octets, kind).numpy()
    np.testing.assert_array_equal(scales, BYTES.view(SCALES[kind]).astype(np.float32))
    codes = BYTES if kind == "mxfp8" else np.stack((BYTES & 15, BYTES >> 4), -1).flatten()
    want = codes.view(CODES[kind]).astype(np.float32)
    got = code_values(octets, form(kind).bits).numpy()
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


@KINDS
def test_dequantising_is_code_times_scale(kind: str) -> None:
    """LIN-8: any words and any scales that are numbers, in float32, bit for bit."""
    seeded = torch.Generator().manual_seed(1)
    group, bits = form(kind).group, form(kind).bits
    words = torch.randint(0, 256, (7, 5 * group * bits // 8), generator=seeded)
    words = words.to(torch.uint8)
    if bits == 8:
        words[words % 128 == 127] = 0  # of e4m3, the codes of NaN
    scale = torch.randint(1, 127, (7, 5), generator=seeded).to(torch.uint8)
    weight = PackedWeight(BlockScaledWeight(words.view(torch.uint32), scale, kind), form(kind))
    assert weight.shape == (7, 5 * group)
    np.testing.assert_array_equal(restored(weight).numpy(), by_hand(weight).astype(np.float32))


@KINDS
def test_codes_are_the_nearest_for_the_scales(kind: str) -> None:
    """Ties to even, saturating: those of a cast of value / scale."""
    values = random_values()
    weight = quantised(values, kind)
    scale = weight.data.scale.numpy().view(SCALES[kind]).astype(np.float32)
    steps = scale.repeat(weight.format.group, -1)
    if weight.global_scale is not None:
        steps = steps * weight.global_scale.numpy()[:, None]
    scaled = np.clip(values.numpy() / steps, -LARGEST[kind], LARGEST[kind])
    want = scaled.astype(np.float32).astype(CODES[kind]).view(np.uint8)
    np.testing.assert_array_equal(codes_of(weight), want)


@pytest.mark.parametrize("kind", ["nvfp4", "mxfp4"])
def test_ties_go_to_the_even_code_and_excess_to_the_largest(kind: str) -> None:
    """Values in a group whose scale is 1 (and 64 above, so that nvfp4's scale is a normal one)."""
    values = torch.tensor([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -0.75, -5, 0, 4, 3, 2, 1])
    weight = quantised(values.repeat(2)[None], kind)
    want = torch.tensor([6, 0, 1, 1, 2, 2, 4, 4, 0, -1, -4, 0, 4, 3, 2, 1]).repeat(2)[None]
    assert torch.equal(restored(weight), want)
    assert codes_of(weight)[0, 8] == 8, "a negative value that rounds to 0 keeps its sign"


def nearest_scale(values: Tensor, kind: str) -> np.ndarray:
    """The scale that just reaches a group's largest value, by trying all."""
    group = form(kind).group
    largest = values.view(values.shape[0], -1, group).abs().amax(-1).double().numpy()
    candidates = 2.0 ** np.arange(-127, 128)
    reaching = candidates[None, None] * LARGEST[kind] >= largest[..., None]
    return reaching.argmax(-1)


def test_mxfp8_scales_are_the_least_that_reach_all_values() -> None:
    values = random_values()
    values[0, :32] = 448.0  # just reached by a scale of 1
    values[0, 32:64] = 448.0001
    values[1, :32] = 0.4375
    scale = quantised(values, "mxfp8").data.scale.numpy()
    np.testing.assert_array_equal(scale, nearest_scale(values, "mxfp8"))
    assert scale[0, :2].tolist() == [127, 128]


def test_mxfp4_scales_are_those_or_half_of_those_whichever_errs_less() -> None:
    values = random_values(rows=200)
    weight = quantised(values, "mxfp4")
    reaching = nearest_scale(values, "mxfp4")
    below = reaching - weight.data.scale.numpy()
    assert set(np.unique(below)) == {0, 1}
    groups = values.view(200, -1, 32).double().numpy()

    def error(bytes_: np.ndarray) -> np.ndarray:
        steps = 2.0 ** (bytes_[..., None] - 127.0)
        codes = np.clip(groups / steps, -6, 6).astype(ml_dtypes.float4_e2m1fn)
        return np.square(codes.astype(np.float64) * steps - groups).sum(-1)

    other = np.where(below == 1, reaching, reaching - 1)
    assert (error(weight.data.scale.numpy().astype(np.int64)) <= error(other) * (1 + 1e-5)).all()


def test_nvfp4_rows_use_all_of_the_range_of_scales() -> None:
    """The global scale, one a row, is the power of two that makes the largest scale 224 to 448."""
    values = random_values()
    weight = quantised(values, "nvfp4")
    assert weight.global_scale is not None
    assert weight.global_scale.shape == (40,)
    mantissa, _ = torch.frexp(weight.global_scale)
    assert (mantissa == 0.5).all()
    scale = torch.from_numpy(weight.data.scale.numpy().view(SCALES["nvfp4"]).astype(np.float32))
    largest = scale.amax(-1)
    assert (largest >= 224).all()
    assert (largest <= 448).all()


@KINDS
@pytest.mark.parametrize("value", [1.0, 0.3, -5e-42, 4e-39, 2e38, -1e-30])
def test_a_group_of_one_value_keeps_it_within_a_step(kind: str, value: float) -> None:
    """All-equal groups, subnormal and extreme ones."""
    values = torch.full((2, 64), value)
    error = (restored(quantised(values, kind)).double() - value).abs()
    # 5 lies between codes of 4 and 6; e4m3 has 16 steps an octave; mx scales end at 2**-127
    assert (error <= abs(value) * (1 / 17 if kind == "mxfp8" else 1 / 5) + 2.0**-129).all()


@KINDS
def test_the_largest_floats_are_cut_off_and_stay_finite(kind: str) -> None:
    """Rounded up, they would leave float32."""
    largest = torch.finfo(torch.float32).max
    got = restored(quantised(torch.full((1, 32), -largest), kind))
    assert got.isfinite().all()
    assert (got <= -0.6 * largest).all()


@KINDS
def test_zeros_stay_zeros(kind: str) -> None:
    """A group of zeros beside others, and a tensor of nothing else."""
    values = random_values(rows=3)
    values[1, 32:64] = 0
    values[2] = 0
    got = restored(quantised(values, kind))
    assert not got[2].any()
    assert not got[1, 32:64].any()
    assert got[1, :32].any()


@KINDS
def test_values_far_below_their_group_go_to_zero(kind: str) -> None:
    values = torch.full((1, 32), 1e-30)
    values[0, ::16] = 6.0
    values[0, 16:] = -values[0, 16:]
    weight = quantised(values, kind)
    assert torch.equal(restored(weight), torch.where(values.abs() == 6, values, 0))


def test_codes_under_a_scale_of_nothing_are_nothing() -> None:
    """nvfp4: where a group is too small for any scale beside another of its row."""
    values = torch.full((1, 32), 1e-30)
    values[0, 16:] = 6.0
    weight = quantised(values, "nvfp4")
    assert weight.data.scale[0, 0] == 0
    assert not codes_of(weight)[0, :16].any()


@KINDS
@pytest.mark.parametrize("columns", [8, 40, 100])
def test_columns_that_are_no_whole_groups_are_refused(kind: str, columns: int) -> None:
    """F05, LIN-3: the caller keeps such a tensor as it is."""
    with pytest.raises(ImportFailedError, match=f"{columns} columns do not make up groups of"):
        quantised(torch.zeros(2, columns), kind)


@KINDS
def test_weights_of_no_rows_have_no_values(kind: str) -> None:
    assert restored(quantised(torch.zeros(0, 64), kind)).shape == (0, 64)


@KINDS
def test_half_precision_values_are_quantised_as_they_are(kind: str) -> None:
    values = random_values().clamp(-100, 100)
    for dtype in (torch.bfloat16, torch.float16):
        half = values.to(dtype)
        got, want = quantised(half, kind), quantised(half.float(), kind)
        assert torch.equal(got.data.words.view(torch.int32), want.data.words.view(torch.int32))


def test_codes_of_eight_bits_lie_four_to_a_word() -> None:
    """PLN-5: the lowest column lowest."""
    words = quantised(torch.tensor([[1.0, -1, 448, 0] * 8]), "mxfp8").data.words
    assert words[0, 0].item() == 0x007EB838
    assert pack(torch.tensor([0x38, 0xB8, 0x7E, 0], dtype=torch.uint8), 8).item() == 0x007EB838
