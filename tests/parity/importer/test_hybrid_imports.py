"""Models with experts, linear layers and inline heads, through an import: nothing is lost."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from fixtures.checkpoints import loaded, logits, placement
from fixtures.qwen import hybrid_folder, wrapped_folder
from fixtures.tiny import Family, tiny_folder
from forerun.contract.model import TargetModel
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.models.load import load_model
from forerun.protocol.imports import CreateRequest
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel
from unit.importer.gguf_files import convert_folder

Make = Callable[[Path, Family], Path]

TOKENS = list(range(40))
# Half as much again as the types cost; unrelated logits are 1.4 apart.
WORST = {"int8": 0.11, "mxfp8": 0.45}
FORMS: list[tuple[Family, Make]] = [
    ("qwen3_moe", tiny_folder),
    ("qwen3_5", hybrid_folder),
    ("qwen3_5_moe", hybrid_folder),
    ("qwen3_next", hybrid_folder),
    ("qwen3_5_moe", wrapped_folder),
]
forms = pytest.mark.parametrize(("family", "make"), FORMS)


def created(source: Path, root: Path, kind: str = "") -> StoredModel:
    store = Store(root / f"store{kind}")
    with (root / "unheard").open("wb") as unheard:
        modelfile = f"FROM ./{source.name}"
        request = CreateRequest(
            name="made", modelfile=modelfile, folder=str(source.parent), quantize=kind
        )
        create(request, store, Reporter(unheard.fileno()))
    return store.get(ModelName.parse("made"))


def model_of(stored: StoredModel) -> TargetModel:
    files = [stored.file(layer) for layer in stored.tensors]
    return load_model(stored.json("config.json"), files, placement())


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@forms
def test_an_import_keeps_the_model(tmp_path: Path, family: Family, make: Make) -> None:
    """PLN-2, PLN-6, F15: experts stacked, norms unshifted; the head is there, wrapped or not."""
    folder = make(tmp_path / "tiny", family)
    model = model_of(created(folder, tmp_path))
    assert torch.equal(logits(model, TOKENS), logits(loaded(folder), TOKENS))
    assert (model.self_draft() is None) == (family == "qwen3_moe")


@pytest.mark.parametrize("kind", WORST)
@forms
def test_a_quantised_import_says_nearly_the_same(
    tmp_path: Path, family: Family, make: Make, kind: str
) -> None:
    """F05, POA-1, POA-7: routers, gates, conv weights and norms are at source precision."""
    folder = make(tmp_path / "tiny", family)
    stored = created(folder, tmp_path, kind)
    model = model_of(stored)
    assert distance(logits(model, TOKENS), logits(loaded(folder), TOKENS)) < WORST[kind]
    assert (model.self_draft() is None) == (family == "qwen3_moe")
    kept = ("norm", "conv1d", "mlp.gate.", "expert_gate", "in_proj_a", "in_proj_b", "visual")
    for tensor in stored.target_tensors():
        if any(part in tensor.name for part in kept):
            assert tensor.kind == "f32", tensor.name


def test_experts_of_two_types_load_from_blobs_of_their_own(tmp_path: Path) -> None:
    """PLN-2, 07 T9: an int4 import whose down projections have 8 bits."""
    folder = tiny_folder(tmp_path / "tiny", "qwen3_moe", moe_intermediate_size=64)
    stored = created(folder, tmp_path, "int4")
    experts = {t.name: t.kind for t in stored.target_tensors() if "0.mlp.experts" in t.name}
    path = "model.layers.0.mlp.experts"
    assert experts == {
        f"{path}.down_proj.weight": "int8",
        f"{path}.gate_proj.weight": "int4",
        f"{path}.up_proj.weight": "int4",
    }
    assert [layer.name for layer in stored.tensors if "0.mlp.experts" in layer.name] == list(
        experts
    )
    found = logits(model_of(stored), TOKENS)
    assert distance(found, logits(loaded(folder), TOKENS)) < 0.6


def moe_keys(folder: Path) -> dict[str, object]:
    config = json.loads((folder / "config.json").read_text())
    return {
        "qwen3moe.expert_count": config["num_local_experts"],
        "qwen3moe.expert_used_count": config["num_experts_per_tok"],
        "qwen3moe.expert_feed_forward_length": config["moe_intermediate_size"],
        "qwen3moe.expert_weights_norm": config["norm_topk_prob"],
    }


@pytest.mark.parametrize("kind", ["", "int8"])
def test_experts_come_out_of_a_gguf_file(tmp_path: Path, kind: str) -> None:
    """GUF-2, GUF-6, GUF-7: router, stacked experts and what the config says of them."""
    folder = tiny_folder(tmp_path / "tiny", "qwen3_moe", moe_intermediate_size=64)
    path = convert_folder(folder, tmp_path / "a.gguf", "qwen3moe", extra=moe_keys(folder))
    stored = created(path, tmp_path, kind)
    found = logits(model_of(stored), TOKENS)
    expected = logits(loaded(folder), TOKENS)
    assert distance(found, expected) <= (WORST[kind] if kind else 1e-6)
    kinds = {t.kind for t in stored.target_tensors() if ".experts." in t.name}
    assert kinds == {kind or "f32"}


def test_experts_of_gguf_blocks_keep_their_values(tmp_path: Path) -> None:
    """GUF-2: three dimensions of affine groups, loaded."""
    folder = tiny_folder(tmp_path / "tiny", "qwen3_moe", moe_intermediate_size=64)
    path = convert_folder(
        folder,
        tmp_path / "a.gguf",
        "qwen3moe",
        matrices=GGMLQuantizationType.Q8_0,
        extra=moe_keys(folder),
    )
    found = logits(model_of(created(path, tmp_path)), TOKENS)
    assert distance(found, logits(loaded(folder), TOKENS)) < 0.11
