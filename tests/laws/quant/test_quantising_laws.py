"""Laws of quantised weights in every format.

Quantising is idempotent, row by row, and never further off than the format's steps; rows of a
weight are rows of its values; a fusion is its parts one after the other.
"""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from forerun.quant.codec import quantise
from forerun.quant.formats import GROUPS, QuantFormat
from forerun.quant.packed import PackedWeight, fuse_rows

FORMS = [QuantFormat(name, group) for name, groups in GROUPS.items() for group in groups]
AFFINE = [form for form in FORMS if form.affine]
SCALED = [form for form in FORMS if not form.affine]
# Half of the widest step as a part of the group's largest value. Of e2m1 it is 1, between codes of
# 4 and 6, and is met by values of 5 or more, or of 6 * 16 / 17 where nvfp4's scale was rounded up;
# of e4m3 it is 16, above 256.
BOUNDS = {"nvfp4": 17 / 16 / 6, "mxfp4": 1 / 5, "mxfp8": 1 / 17}

forms = st.sampled_from(FORMS)
seeds = st.integers(0, 10_000)
spreads = st.sampled_from([0.0, 1.0, 4.0])


def values_of(seed: int, rows: int, columns: int, spread: float) -> Tensor:
    """Rows that differ in magnitude by about e**spread; a tenth of the values are 0."""
    seeded = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=seeded)
    values *= torch.exp(torch.randn(rows, 1, generator=seeded) * spread)
    return values * (torch.rand(rows, columns, generator=seeded) > 0.1)


def restored(weight: PackedWeight) -> Tensor:
    return weight.dequantise(torch.float32)


def same(one: PackedWeight, other: PackedWeight) -> bool:
    """Whether they are stored alike."""
    return (
        torch.equal(one.data.words.view(torch.int32), other.data.words.view(torch.int32))
        and torch.equal(one.data.scale, other.data.scale)
        and torch.equal(restored(one), restored(other))
    )


@given(form=st.sampled_from(SCALED), seed=seeds, spread=spreads, power=st.integers(-40, 40))
@settings(max_examples=60, deadline=None)
def test_no_value_is_further_off_than_half_a_step(
    form: QuantFormat, seed: int, spread: float, power: int
) -> None:
    """T11, F05: relative to the largest value of its group; for mxfp4, in the mean of squares."""
    values = values_of(seed, 3, 2 * form.group, spread) * 2.0**power
    error = (restored(quantise(values, form)) - values).view(3, 2, form.group).abs()
    largest = values.view(3, 2, form.group).abs().amax(-1)
    # mxfp4 may cut off the largest values for a smaller error in all
    off = error.square().mean(-1).sqrt() if form.name == "mxfp4" else error.amax(-1)
    assert (off <= BOUNDS[form.name] * largest).all()


@given(
    form=st.sampled_from(AFFINE),
    seed=seeds,
    power=st.integers(-40, 0),
    offset=st.sampled_from([0.0, 2.0**-14, 1.0, -1.0]),
)
@settings(max_examples=60, deadline=None)
def test_no_affine_value_is_further_off_than_half_the_range_of_its_group(
    form: QuantFormat, seed: int, power: int, offset: float
) -> None:
    """T11, F05: and what a zero point of 16 bits adds, also where a step of 16 bits is none.

    Zero points are the smallest values of all groups but those, whose middle they are.
    """
    values = values_of(seed, 3, 2 * form.group, 1) * 2.0**power + offset
    weight = quantise(values, form)
    low, high = values.view(3, 2, form.group).aminmax(dim=-1)
    error = (restored(weight) - values).view(3, 2, form.group).abs().amax(-1)
    rounded = torch.maximum(low.abs(), high.abs()) * 2.0**-11 + 2.0**-25
    assert (error <= (high - low) / 2 + rounded).all()
    lost = (weight.data.scale == 0) & (high > low)
    points = weight.zero_points
    assert points is not None
    assert torch.equal(points[~lost], low.half()[~lost])
    assert torch.equal(points[lost], (low + (high - low) / 2).half()[lost])


@given(form=st.sampled_from(SCALED), seed=seeds, spread=spreads, power=st.integers(-40, 40))
@settings(max_examples=60, deadline=None)
def test_quantising_what_was_dequantised_changes_no_value(
    form: QuantFormat, seed: int, spread: float, power: int
) -> None:
    """Bit for bit, where groups of a row are within 2**13 of each other (nvfp4's scales)."""
    values = values_of(seed, 3, 4 * form.group, spread) * 2.0**power
    once = restored(quantise(values, form))
    assert torch.equal(restored(quantise(once, form)), once)


@given(form=forms, seed=seeds, rows=st.integers(2, 6), cut=st.integers(0, 6))
@settings(max_examples=60, deadline=None)
def test_rows_are_quantised_apart_from_each_other(
    form: QuantFormat, seed: int, rows: int, cut: int
) -> None:
    """T11: parts of the rows give parts of the weight, so that an import may stream."""
    values = values_of(seed, rows, 2 * form.group, 1)
    whole = quantise(values, form)
    cut = min(cut, rows)
    parts = [quantise(values[:cut], form), quantise(values[cut:], form)]
    for part, which in zip(parts, (slice(0, cut), slice(cut, None)), strict=True):
        assert same(part, whole.rows(which))
    fused = fuse_rows(parts)
    assert isinstance(fused, PackedWeight)
    assert same(fused, whole)


@given(
    form=forms,
    seed=seeds,
    rows=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    scales=st.lists(st.sampled_from(["none", "scalar", "rows"]), min_size=4, max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_a_fusion_is_its_parts_one_after_the_other(
    form: QuantFormat, seed: int, rows: list[int], scales: list[str]
) -> None:
    """LIN-6, T11: bit for bit, with any mix of global scales, absent meaning 1."""
    parts = []
    for index, (count, kind) in enumerate(zip(rows, scales, strict=False)):
        made = quantise(values_of(seed + index, count, form.group, 1), form)
        scale = {"none": None, "scalar": torch.tensor(0.7), "rows": torch.rand(count) + 0.5}[kind]
        parts.append(PackedWeight(made.data, form, scale))
    fused = fuse_rows(parts)
    assert isinstance(fused, PackedWeight)
    assert fused.shape == (sum(rows), form.group)
    assert torch.equal(restored(fused), torch.cat([restored(part) for part in parts]))
    assert (fused.global_scale is None) == all(part.global_scale is None for part in parts)


@given(
    form=forms,
    which=st.one_of(
        st.builds(slice, st.integers(0, 4), st.integers(0, 9)),
        st.lists(st.integers(0, 6), max_size=5).map(lambda i: torch.tensor(i, dtype=torch.int64)),
    ),
    scale=st.sampled_from([None, torch.tensor(0.3), torch.linspace(0.5, 2, 7)]),
)
@settings(max_examples=60, deadline=None)
def test_rows_of_a_weight_are_rows_of_its_values(
    form: QuantFormat, which: slice | Tensor, scale: Tensor | None
) -> None:
    """T11, LIN-5"""
    weight = PackedWeight(quantise(values_of(0, 7, 2 * form.group, 1), form).data, form, scale)
    assert torch.equal(restored(weight.rows(which)), restored(weight)[which])
