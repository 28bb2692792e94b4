"""Quantised weights as a checkpoint stores them: every format, mixed files, stacks of experts."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fixtures.checkpoints import placement
from forerun.base.errors import LoadError
from forerun.models.tensor_files import open_tensors
from forerun.models.weights import Weights
from forerun.nn.placement import Placement
from forerun.quant.codec import quantise
from forerun.quant.formats import GROUPS, QuantFormat
from forerun.quant.packed import PackedWeight
from forerun.quant.parts import stored_parts

FORMS = {name: QuantFormat(name, groups[0]) for name, groups in GROUPS.items()}
EXPERTS, ROWS, COLUMNS = 3, 5, 64
STACK = "layers.0.mlp.experts.down_proj"


def random_weight(form: QuantFormat, rows: int, seed: int = 0) -> PackedWeight:
    values = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(seed))
    return quantise(values, form)


def opened(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str], where: Placement | None = None
) -> Weights:
    save_file(tensors, path / "model.safetensors", metadata)
    return Weights(open_tensors([path / "model.safetensors"]), {}, where or placement())


def named(name: str, weight: PackedWeight) -> dict[str, Tensor]:
    return {name + suffix: part for suffix, part in stored_parts(weight).items()}


def stacked(weight: PackedWeight) -> dict[str, Tensor]:
    """Its parts with an axis of experts, but for the global scale."""
    parts = named(STACK, weight)
    return {
        name: part if part.dim() == 1 else part.view(EXPERTS, ROWS, -1)
        for name, part in parts.items()
    }


def stated(form: QuantFormat, name: str = "") -> dict[str, str]:
    start = f"{name}." if name else ""
    return {f"{start}quant_type": form.name, f"{start}group_size": str(form.group)}


def values(weight: PackedWeight | Tensor) -> Tensor:
    assert isinstance(weight, PackedWeight)
    return weight.dequantise(torch.float32)


@pytest.mark.parametrize("name", FORMS)
def test_a_weight_of_every_format_is_read_as_it_was_made(tmp_path: Path, name: str) -> None:
    """LIN-1, LIN-2, LIN-3, PLN-5: global scales of rows included."""
    made = random_weight(FORMS[name], ROWS)
    weights = opened(tmp_path, named("p.weight", made), stated(made.format))
    (picked,) = weights.pick(COLUMNS, ("p", ROWS))
    assert isinstance(picked.weight, PackedWeight)
    assert picked.weight.format == made.format
    assert torch.equal(values(picked.weight), values(made))
    assert weights.surplus == []


@pytest.mark.parametrize("general", [{}, stated(FORMS["int8"])])
def test_a_file_of_several_formats_states_each_weights_own(
    tmp_path: Path, general: dict[str, str]
) -> None:
    """PLN-5, LIN-2"""
    made = {name: random_weight(form, ROWS) for name, form in FORMS.items()}
    tensors: dict[str, Tensor] = {}
    metadata = dict(general)
    for name, weight in made.items():
        tensors |= named(f"{name}.weight", weight)
        if name != "int8" or not general:
            metadata |= stated(weight.format, f"{name}.weight")
    weights = opened(tmp_path, tensors, metadata)
    for name, weight in made.items():
        (picked,) = weights.pick(COLUMNS, (name, ROWS))
        assert torch.equal(values(picked.weight), values(weight))


def test_a_weights_own_type_stands_without_the_files_group(tmp_path: Path) -> None:
    """PLN-5: the group of other weights says nothing of it."""
    made = random_weight(FORMS["nvfp4"], ROWS)
    metadata = {**stated(FORMS["int4"]), "p.weight.quant_type": "nvfp4"}
    (picked,) = opened(tmp_path, named("p.weight", made), metadata).pick(COLUMNS, ("p", ROWS))
    assert torch.equal(values(picked.weight), values(made))


@pytest.mark.parametrize("name", FORMS)
def test_a_packed_stack_is_one_weight_expert_after_expert(tmp_path: Path, name: str) -> None:
    """LIN-8, LIN-10: bit for bit, and expert e is rows e * out to (e + 1) * out."""
    made = random_weight(FORMS[name], EXPERTS * ROWS)
    weights = opened(tmp_path, stacked(made), stated(made.format))
    stack = weights.stack(STACK, EXPERTS, ROWS, COLUMNS)
    assert torch.equal(values(stack), values(made))
    assert isinstance(stack, PackedWeight)
    expert = stack.rows(slice(ROWS, 2 * ROWS))
    assert torch.equal(values(expert), values(made)[ROWS : 2 * ROWS])
    assert weights.surplus == []


def test_a_dense_stack_is_one_weight_too(tmp_path: Path) -> None:
    stack = torch.randn(EXPERTS, ROWS, COLUMNS)
    weights = opened(tmp_path, {STACK: stack}, {})
    assert torch.equal(weights.stack(STACK, EXPERTS, ROWS, COLUMNS), stack.flatten(0, 1))


@pytest.mark.parametrize(
    "scale",
    [
        torch.tensor(3.0),
        torch.tensor([3.0]),
        torch.tensor([1.0, 2.0, 0.5]),  # one an expert
        torch.linspace(0.5, 2, EXPERTS * ROWS).view(EXPERTS, ROWS),
        torch.linspace(0.5, 2, EXPERTS * ROWS),
    ],
    ids=lambda scale: str(list(scale.shape)),
)
def test_a_stack_has_one_global_scale_or_one_an_expert_or_row(
    tmp_path: Path, scale: Tensor
) -> None:
    """LIN-1, LIN-4"""
    made = random_weight(FORMS["mxfp4"], EXPERTS * ROWS)
    tensors = {**stacked(made), f"{STACK}_scale_2": scale}
    stack = opened(tmp_path, tensors, stated(made.format)).stack(STACK, EXPERTS, ROWS, COLUMNS)
    factors = scale.flatten().repeat_interleave(EXPERTS * ROWS // scale.numel())
    assert torch.equal(values(stack), values(made) * factors[:, None])


@pytest.mark.parametrize("shape", [(2,), (ROWS, 1), (EXPERTS * ROWS, 1)])
def test_a_global_scale_of_another_shape_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """LIN-4 (F13)"""
    made = random_weight(FORMS["mxfp4"], EXPERTS * ROWS)
    tensors = {**stacked(made), f"{STACK}.global_scale": torch.ones(shape)}
    weights = opened(tmp_path, tensors, stated(made.format))
    with pytest.raises(LoadError, match=rf"{STACK}\.global_scale has shape"):
        weights.stack(STACK, EXPERTS, ROWS, COLUMNS)


@pytest.mark.parametrize("part", ["", ".scale"])
def test_a_stack_of_other_sizes_is_refused(tmp_path: Path, part: str) -> None:
    """(F13)"""
    made = random_weight(FORMS["mxfp8"], EXPERTS * ROWS)
    tensors = stacked(made)
    tensors[STACK + part] = tensors[STACK + part][:2].clone()
    weights = opened(tmp_path, tensors, stated(made.format))
    with pytest.raises(LoadError, match=rf"{STACK}\S* has shape \[2, 5, \d+\] .* \[3, 5, \d+\]"):
        weights.stack(STACK, EXPERTS, ROWS, COLUMNS)


@pytest.mark.parametrize(
    ("made", "said"), [("int8", "nvfp4, which has no torch.float16"), ("mxfp4", "int4, which has")]
)
def test_scales_of_the_other_kind_are_refused(tmp_path: Path, made: str, said: str) -> None:
    """LIN-2: metadata says what the bytes cannot be (F13)."""
    weight = random_weight(FORMS[made], ROWS)
    group = {"nvfp4": "16", "int4": "32"}[said.split(",")[0]]
    tensors = named("p.weight", weight)
    if made == "int8":  # in shapes that would do
        tensors["p.weight"] = tensors["p.weight"][:, :8].clone()
        tensors["p.weight.scale"] = torch.ones(ROWS, 4, dtype=torch.float16)
        del tensors["p.weight.bias"]
    metadata = {"quant_type": said.split(",")[0], "group_size": group}
    with pytest.raises(LoadError, match=f"tensor p.weight is {said}"):
        opened(tmp_path, tensors, metadata).pick(COLUMNS, ("p", ROWS))


def test_zero_points_of_a_format_without_are_refused(tmp_path: Path) -> None:
    """CON-14: they would change the numbers."""
    made = random_weight(FORMS["mxfp4"], ROWS)
    tensors = {**named("p.weight", made), "p.weight.bias": torch.zeros(ROWS, 2)}
    with pytest.raises(LoadError, match=r"tensor p\.weight is mxfp4 and has zero points"):
        opened(tmp_path, tensors, stated(made.format)).pick(COLUMNS, ("p", ROWS))


@pytest.mark.parametrize("name", FORMS)
def test_a_dry_load_checks_stacks_without_their_values(tmp_path: Path, name: str) -> None:
    made = random_weight(FORMS[name], EXPERTS * ROWS)
    dry = placement(device=torch.device("meta"))
    stack = opened(tmp_path, stacked(made), stated(made.format), dry).stack(
        STACK, EXPERTS, ROWS, COLUMNS
    )
    assert isinstance(stack, PackedWeight)
    assert stack.shape == (EXPERTS * ROWS, COLUMNS)
    assert stack.rows(slice(0, ROWS)).data.words.is_meta
