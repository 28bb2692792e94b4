"""From tensors to blobs: order, experts, what shares a blob (07 PLN)."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from forerun.base.errors import ImportFailedError
from forerun.importer.plan import BlobPlan, Rule
from forerun.importer.planning import plan_blobs
from forerun.importer.policy.choose import chooser
from forerun.importer.source_tensors import plain
from unit.importer.source_folders import Shape, entries, imported

BF16 = ("BF16", (64, 64))
EXPERTS = "model.layers.0.mlp.experts"
PARTS = ("down_proj", "gate_proj", "up_proj")


def planned(
    tensors: dict[str, tuple[str, Shape]], quantize: str = "", prefix: str = ""
) -> tuple[BlobPlan, ...]:
    sources = {name: plain(entry) for name, entry in entries(**tensors).items()}
    return plan_blobs(sources, chooser({}, quantize), prefix)


def experts(count: int = 2, shape: Shape = (64, 64)) -> dict[str, tuple[str, Shape]]:
    return {
        f"{EXPERTS}.{expert}.{part}.weight": ("BF16", shape)
        for expert in range(count)
        for part in PARTS
    }


def test_tensors_come_sorted_and_experts_after_them() -> None:
    """PLN-1, PLN-2: a blob a tensor, then a blob a group of experts, each named by it."""
    other = {name.replace("0.mlp", "1.mlp"): entry for name, entry in experts().items()}
    blobs = planned({"z.weight": BF16, **other, **experts(), "a.weight": BF16}, prefix="draft.")
    names = ["a.weight", "z.weight", EXPERTS, EXPERTS.replace("0.mlp", "1.mlp")]
    assert [blob.name for blob in blobs] == [f"draft.{name}" for name in names]
    group = blobs[2]
    assert [plan.name for plan in group.tensors] == [
        f"draft.{EXPERTS}.{part}.weight" for part in PARTS
    ]
    assert {plan.shape for plan in group.tensors} == {(2, 64, 64)}


def test_experts_stand_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """PLN-2: "10" comes after "9"."""
    tensors = {
        f"{EXPERTS}.{expert}.up_proj.weight": torch.full((2, 3), float(expert))
        for expert in range(12)
    }
    found, _ = imported(tmp_path, tensors)
    stack = found[f"{EXPERTS}.up_proj.weight"]
    assert stack.shape == (12, 2, 3)
    assert stack[:, 0, 0].tolist() == list(range(12))


@pytest.mark.parametrize("kind", ["", "int8", "nvfp4", "mxfp4", "mxfp8"])
def test_experts_of_one_type_share_a_blob(kind: str) -> None:
    """PLN-2, PLN-5: the blob states the type once."""
    (blob,) = planned(experts(), kind)
    assert blob.name == EXPERTS
    assert blob.metadata.get("quant_type", "") == kind
    assert {plan.rule for plan in blob.tensors} == {Rule.QUANTISE if kind else Rule.KEEP}


def test_experts_of_two_types_have_blobs_of_their_own() -> None:
    """PLN-2, PLN-5, 07 T9: int4 with a down projection of 8 bits."""
    blobs = planned(experts(), "int4")
    found = {blob.name: blob.metadata["quant_type"] for blob in blobs}
    assert found == {
        f"{EXPERTS}.down_proj.weight": "int8",
        f"{EXPERTS}.gate_proj.weight": "int4",
        f"{EXPERTS}.up_proj.weight": "int4",
    }


def test_a_projection_that_does_not_fit_is_dense_beside_the_others() -> None:
    """PLN-2, POL-4: types differ also where one is none."""
    tensors = experts()
    for expert in range(2):
        tensors[f"{EXPERTS}.{expert}.down_proj.weight"] = ("BF16", (64, 40))
    kinds = [blob.tensors[0].kind for blob in planned(tensors, "mxfp8")]
    assert kinds == ["BF16", "mxfp8", "mxfp8"]


def test_stacks_are_ordinary_tensors() -> None:
    """PLN-3: blobs of their own, also without `.weight` in their names."""
    stacks = {
        f"{EXPERTS}.gate_up_proj": ("BF16", (4, 128, 64)),
        f"{EXPERTS}.down_proj": ("BF16", (4, 64, 64)),
    }
    blobs = planned(stacks, "nvfp4")
    assert [blob.name for blob in blobs] == sorted(stacks)
    assert {plan.rule for blob in blobs for plan in blob.tensors} == {Rule.QUANTISE}


def test_values_change_by_quantisation_alone(tmp_path: Path) -> None:
    """PLN-6, POA-7: norms, conv weights and whole numbers pass with every bit as it was."""
    kept: dict[str, Tensor] = {
        "layers.0.input_layernorm.weight": torch.randn(64),
        "layers.0.linear_attn.conv1d.weight": torch.randn(64, 1, 4).bfloat16(),
        "layers.0.linear_attn.A_log": torch.randn(64).half(),
        "d2t": torch.arange(64),
        "wide.weight": torch.randn(64, 64).double(),
    }
    found, _ = imported(tmp_path, kept)
    assert all(torch.equal(found[name], kept[name]) for name in kept)
    del kept["wide.weight"]
    found, _ = imported(tmp_path, kept, quantize="int4")
    assert all(torch.equal(found[name], kept[name]) for name in kept)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {f"{EXPERTS}.1.up_proj.weight": ("BF16", (64, 32))},
            r"1\.up_proj\.weight is BF16 \[64, 32\]",
        ),
        ({f"{EXPERTS}.1.up_proj.weight": ("F16", (64, 64))}, r"1\.up_proj\.weight is F16"),
        ({f"{EXPERTS}.5.up_proj.weight": BF16}, r"experts\.2\.down_proj\.weight is missing"),
        (
            {f"{EXPERTS}.99999999999.up_proj.weight": BF16},
            r"experts\.2\.down_proj\.weight is missing",
        ),
        ({f"{EXPERTS}.01.up_proj.weight": BF16}, r"1\.up_proj\.weight are one expert"),
    ],
)
def test_experts_that_are_no_stack_are_named(
    change: dict[str, tuple[str, Shape]], message: str
) -> None:
    """PLN-2, 07 T11."""
    with pytest.raises(ImportFailedError, match=message):
        planned(experts() | change)


@pytest.mark.parametrize("lacking", [0, 1])
def test_experts_of_which_one_lacks_a_part_are_named(lacking: int) -> None:
    """PLN-2: its factor would be 1, or another's."""
    sources = {name: plain(entry) for name, entry in entries(**experts()).items()}
    factors = entries(**{f"{EXPERTS}.{1 - lacking}.up_proj.factor": ("F32", ())})
    for name, factor in factors.items():
        whole = name.replace("factor", "weight")
        sources[whole] = replace(sources[whole], global_scale=factor)
    message = rf"\.{lacking}\.up_proj\.weight has no global scale, and there is .*factor; experts"
    with pytest.raises(ImportFailedError, match=message):
        plan_blobs(sources, chooser({}, ""))


def test_a_stack_beside_its_experts_is_a_collision() -> None:
    """PLN-4, 07 T8: both are named."""
    name = f"{EXPERTS}.up_proj.weight"
    message = rf"{re.escape(name)} and .*\.0\.up_proj\.weight are both {re.escape(name)}"
    with pytest.raises(ImportFailedError, match=message):
        planned(experts() | {name: ("BF16", (2, 64, 64))})


def test_two_forms_of_one_weight_are_a_collision(tmp_path: Path) -> None:
    """PLN-4, 07 T8."""
    packed = torch.zeros(2, 16, dtype=torch.uint8)
    scale = torch.ones(2, 2).to(torch.float8_e4m3fn)
    parts = {"a.weight_packed": packed, "a.weight_scale": scale}
    parts["a.weight_global_scale"] = torch.ones(1)
    tensors = parts | {"a.weight": torch.ones(2, 32)}
    with pytest.raises(
        ImportFailedError, match=r"a\.weight_packed and a\.weight are both a\.weight"
    ):
        imported(tmp_path, tensors)
