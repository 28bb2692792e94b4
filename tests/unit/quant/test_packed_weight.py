"""Slices, fusion by rows and global scales of packed weights (T11)."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fixtures.kernels_parity import random_affine
from forerun.base.errors import LoadError
from forerun.quant.formats import QuantFormat
from forerun.quant.packed import PackedWeight, fuse_rows


def packed(
    rows: int,
    columns: int = 64,
    *,
    name: str = "int4",
    group: int = 32,
    scale: Tensor | None = None,
    seed: int = 0,
) -> PackedWeight:
    form = QuantFormat(name, group)
    return PackedWeight(
        random_affine(rows, columns, bits=form.bits, group=group, seed=seed), form, scale
    )


def values(weight: PackedWeight) -> Tensor:
    return weight.dequantise(torch.float32)


SCALE = st.sampled_from(["none", "scalar", "rows"])


def a_scale(kind: str, rows: int) -> Tensor | None:
    if kind == "none":
        return None
    return torch.tensor(0.7) if kind == "scalar" else torch.linspace(0.5, 2, rows)


@given(
    parts=st.lists(st.tuples(st.integers(1, 5), SCALE), min_size=1, max_size=4),
    name=st.sampled_from(["int4", "int8"]),
)
@settings(max_examples=40)
def test_a_fused_weight_is_its_parts_one_after_the_other(
    parts: list[tuple[int, str]], name: str
) -> None:
    """T11, LIN-6: bit for bit, with any mix of global scales, absent meaning 1."""
    weights = [
        packed(rows, name=name, scale=a_scale(kind, rows), seed=i)
        for i, (rows, kind) in enumerate(parts)
    ]
    fused = fuse_rows(weights)
    assert isinstance(fused, PackedWeight)
    assert fused.shape == (sum(rows for rows, _ in parts), 64)
    assert torch.equal(values(fused), torch.cat([values(weight) for weight in weights]))


def test_fusing_keeps_global_scales_of_rows_only_where_there_are_any() -> None:
    """LIN-6"""
    assert fuse_rows([packed(2), packed(3)]).global_scale is None  # type: ignore[union-attr]
    fused = fuse_rows([packed(2, scale=torch.tensor(3.0)), packed(1)])
    assert isinstance(fused, PackedWeight)
    assert fused.global_scale is not None
    assert fused.global_scale.tolist() == [3, 3, 1]


def test_scales_of_two_dtypes_fuse_exactly() -> None:
    """LIN-6: into the wider one."""
    first, second = packed(2), packed(2, seed=1)
    wide = dataclasses.replace(second.data, scale=second.data.scale.float() * 1.001)
    other = dataclasses.replace(second, data=wide)
    fused = fuse_rows([first, other])
    assert isinstance(fused, PackedWeight)
    assert torch.equal(values(fused), torch.cat((values(first), values(other))))


def without_zero_points(weight: PackedWeight) -> PackedWeight:
    return dataclasses.replace(weight, data=dataclasses.replace(weight.data, bias=None))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (packed(2, name="int8"), "int4 group 32, int8 group 32"),
        (packed(2, group=64), "int4 group 32, int4 group 64"),
        (without_zero_points(packed(2)), "scales only"),
        (torch.zeros(2, 64), "float32"),
    ],
)
def test_different_formats_do_not_fuse(other: PackedWeight | Tensor, said: str) -> None:
    """LIN-6"""
    with pytest.raises(LoadError, match=said):
        fuse_rows([packed(2), other])


def test_dense_weights_fuse_too() -> None:
    first, second = torch.randn(2, 4), torch.randn(3, 4)
    fused = fuse_rows([first, second])
    assert isinstance(fused, Tensor)
    assert torch.equal(fused, torch.cat((first, second)))


@given(
    kind=SCALE,
    which=st.one_of(
        st.builds(slice, st.integers(0, 4), st.integers(0, 9)),
        st.lists(st.integers(0, 6), max_size=5).map(lambda i: torch.tensor(i, dtype=torch.int64)),
    ),
)
@settings(max_examples=40)
def test_rows_of_a_weight_are_rows_of_its_values(kind: str, which: slice | Tensor) -> None:
    """T11, LIN-5"""
    weight = packed(7, scale=a_scale(kind, 7))
    assert torch.equal(values(weight.rows(which)), values(weight)[which])


def test_a_slice_is_a_view() -> None:
    weight = packed(8, scale=torch.ones(8))
    part = weight.rows(slice(2, 4))
    assert part.data.words.untyped_storage().data_ptr() == (
        weight.data.words.untyped_storage().data_ptr()
    )


def test_values_are_rounded_once() -> None:
    """LIN-4: the global scale is applied before the rounding to half precision."""
    weight = packed(4, scale=torch.tensor(0.37))
    assert torch.equal(weight.dequantise(torch.bfloat16), values(weight).bfloat16())


def test_bytes_are_those_of_all_parts() -> None:
    weight = packed(2, scale=torch.tensor(1.0))
    assert weight.nbytes == 2 * 64 // 2 + 2 * 2 * (2 * 2) + 4
