"""Which format a quantised tensor has, from the first source that answers (LIN-2)."""

from collections.abc import Mapping

import pytest

from forerun.base.errors import LoadError
from forerun.quant.formats import QuantFormat
from forerun.quant.resolve import resolve

NAME = "model.layers.3.mlp.down_proj.weight"
PATH = NAME.removesuffix(".weight")
GENERAL = {"bits": 4, "group_size": 64}


def of(
    columns: int,
    form: QuantFormat,
    metadata: Mapping[str, str] | None = None,
    **config: object,
) -> QuantFormat:
    """Resolve a tensor that really has `form`."""
    shape = (columns * form.bits // 32, columns // form.group)
    return resolve(NAME, shape, metadata=metadata or {}, config=config)


@pytest.mark.parametrize("name", ["int4", "int8"])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_metadata_answers_first(name: str, group: int) -> None:
    """LIN-2, LIN-3"""
    form = QuantFormat(name, group)
    metadata = {"quant_type": name, "group_size": str(group)}
    assert of(256, form, metadata, quantization={"bits": 8, "group_size": 64}) == form
    assert of(256, form, {"quant_type": name}) == form  # the group follows from the shapes


def test_the_config_answers_next_its_entry_for_the_layer_before_the_rest() -> None:
    """LIN-2"""
    int4, int8 = QuantFormat("int4", 64), QuantFormat("int8", 32)
    assert of(256, int4, quantization=GENERAL) == int4
    assert of(256, int8, quantization={**GENERAL, PATH: {"bits": 8, "group_size": 32}}) == int8
    assert of(256, int4, quantization={**GENERAL, "other": {"bits": 8, "group_size": 32}}) == int4
    eight = QuantFormat("int8", 64)
    assert of(256, eight, quantization={**GENERAL, PATH: {"bits": 8}}) == eight


def test_shapes_answer_where_they_leave_one_format() -> None:
    """LIN-2: int8 group 128 would be int4 group 256, which does not exist."""
    assert of(256, QuantFormat("int8", 128)) == QuantFormat("int8", 128)
    assert of(256, QuantFormat("int8", 128), quantization={}) == QuantFormat("int8", 128)


@pytest.mark.parametrize(
    ("form", "other"),
    [
        (QuantFormat("int4", 128), "int8 group 64"),
        (QuantFormat("int4", 64), "int8 group 32"),
        (QuantFormat("int8", 64), "int4 group 128"),
        (QuantFormat("int8", 32), "int4 group 64"),
        (QuantFormat("int4", 32), "int8 group 16"),
    ],
    ids=str,
)
def test_shapes_that_fit_two_formats_are_refused(form: QuantFormat, other: str) -> None:
    """LIN-2"""
    with pytest.raises(LoadError, match=f"{NAME}.*{other}"):
        of(256, form)


INT4 = {"quant_type": "int4", "group_size": "64"}


@pytest.mark.parametrize(
    ("metadata", "config", "said"),
    [
        ({**INT4, "quant_type": "nvfp4"}, {}, "group_size 64; served for nvfp4 are 16"),
        ({**INT4, "group_size": "16"}, {}, "group_size 16"),
        ({**INT4, "group_size": "many"}, {}, "group_size many"),
        ({**INT4, "group_size": "32"}, {}, "int4 group 32, which does not fit"),
        ({**INT4, "quant_type": "int8"}, {}, "int8 group 64, which does not fit"),
        (
            {},
            {"quantization": {**GENERAL, "mode": "mxfp4"}},
            "group_size 64; served for mxfp4 are 32",
        ),
        ({}, {"quantization": {"bits": 3, "group_size": 64}}, "3 bits"),
        ({}, {"quantization": {"bits": "4", "group_size": 64}}, "'4' bits"),
        ({}, {"quantization": {**GENERAL, PATH: False}}, "states False"),
        ({}, {"quantization": "awq"}, "awq"),
    ],
)
def test_what_is_stated_is_never_replaced_by_a_guess(
    metadata: Mapping[str, str], config: Mapping[str, object], said: str
) -> None:
    """LIN-2: a tensor of int4 group 64, described as something else."""
    with pytest.raises(LoadError, match=f"{NAME} .*{said}"):
        resolve(NAME, (32, 4), metadata=metadata, config=config)


@pytest.mark.parametrize("shape", [(32, 3), (32, 0), (1, 1), (12, 3), (289, 9)])
def test_columns_that_are_no_whole_groups_are_refused(shape: tuple[int, int]) -> None:
    """LIN-2, LIN-3: with and without a statement."""
    for metadata in ({}, INT4):
        with pytest.raises(LoadError, match=NAME):
            resolve(NAME, shape, metadata=metadata, config={})
