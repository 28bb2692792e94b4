"""Which format a quantised tensor has, from the first source that answers (LIN-2)."""

from collections.abc import Mapping

import pytest

from forerun.base.errors import LoadError
from forerun.quant.formats import GROUPS, QuantFormat
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


FORMS = [QuantFormat(name, group) for name, groups in GROUPS.items() for group in groups]
SCALED = [form for form in FORMS if not form.affine]


def mlx(form: QuantFormat) -> dict[str, object]:
    """As a config of MLX states it."""
    mode = "affine" if form.affine else form.name
    return {"mode": mode, "bits": form.bits, "group_size": form.group}


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_metadata_answers_first(form: QuantFormat) -> None:
    """LIN-2, LIN-3"""
    name, group = form.name, form.group
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


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_config_states_every_format_by_mode_and_bits(form: QuantFormat) -> None:
    """LIN-2, PRQ-3: for all tensors or for one; what only repeats the mode may be left out."""
    assert of(256, form, quantization=mlx(form)) == form
    assert of(256, form, quantization={**GENERAL, PATH: mlx(form)}) == form
    assert of(256, form, quantization={**mlx(form), PATH: True}) == form
    if not form.affine:
        assert of(256, form, quantization={"mode": form.name}) == form


@pytest.mark.parametrize("general", SCALED, ids=str)
def test_an_entry_with_bits_and_no_mode_is_affine(general: QuantFormat) -> None:
    """LIN-2: MLX writes a layer that is kept in more bits so, whatever the mode of the others."""
    eight = QuantFormat("int8", 64)
    entry = {"bits": 8, "group_size": 64}
    assert of(256, eight, quantization={**mlx(general), PATH: entry}) == eight
    assert of(256, general, quantization={**mlx(general), "other": entry}) == general


@pytest.mark.parametrize("form", SCALED, ids=str)
def test_shapes_alone_never_suggest_a_block_scaled_format(form: QuantFormat) -> None:
    """LIN-2: all that is made is stated; a guess between scales of bytes could only be wrong."""
    with pytest.raises(LoadError, match=f"{NAME} could be"):
        of(256, form)


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
    with pytest.raises(LoadError, match=f"{NAME}.*{other}.*; state what it is under"):
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
        ({"quant_type": "nf4"}, {}, "'nf4'; served are int4, int8, nvfp4, mxfp4, mxfp8"),
        ({"quant_type": "mxfp4", "group_size": "32"}, {}, "mxfp4 group 32, which does not fit"),
        ({"quant_type": "nvfp4"}, {}, "group_size 64; served for nvfp4 are 16"),
        ({}, {"quantization": {**GENERAL, "mode": "nf4"}}, "mode 'nf4'; served are affine, mxfp4"),
        ({}, {"quantization": {**GENERAL, "mode": []}}, r"mode \[\]"),
        ({}, {"quantization": {"mode": "mxfp8", "bits": 4}}, "4 bits; served in mode mxfp8 are 8"),
        ({}, {"quantization": {"mode": "affine", "bits": True}}, "True bits"),
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
    remedy = "import the model again" if metadata else "state what it is under `quantization` in"
    with pytest.raises(LoadError, match=f"{NAME} .*{said}.*; {remedy}"):
        resolve(NAME, (32, 4), metadata=metadata, config=config)


@pytest.mark.parametrize("shape", [(32, 3), (32, 0), (1, 1), (12, 3), (289, 9)])
def test_columns_that_are_no_whole_groups_are_refused(shape: tuple[int, int]) -> None:
    """LIN-2, LIN-3: with and without a statement."""
    for metadata in ({}, INT4):
        with pytest.raises(LoadError, match=NAME):
            resolve(NAME, shape, metadata=metadata, config={})
