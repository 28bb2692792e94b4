"""Folders that publishers quantised, imported and loaded: models of the values they stand for."""

from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file, save_file

from fixtures.checkpoints import CPU, edit_config, loaded, logits, relative_error
from fixtures.publishers import Layout, publish
from fixtures.tiny import tiny_folder
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.kernels.select import KernelChoice
from forerun.models.load import load_model
from forerun.nn.placement import Placement
from forerun.protocol.imports import CreateRequest
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel
from unit.importer.source_folders import imported, values

MLX = load_file(Path(__file__).parents[2] / "fixtures" / "mlx_vectors.safetensors")
MLX_WEIGHTS = sorted({name.removesuffix(".weight") for name in MLX if name.endswith(".weight")})

EXACT = Placement(torch.float32, CPU, KernelChoice(cpu_kernels=False))
TOKENS = list(range(40))
SHAPE: dict[str, object] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 32}
TYPES = {"compressed-tensors": "nvfp4", "modelopt": "nvfp4"}


def created(folder: Path, root: Path) -> StoredModel:
    store = Store(root)
    with (root.parent / "unheard").open("wb") as unheard:
        request = CreateRequest(name="made", modelfile="FROM .", folder=str(folder))
        create(request, store, Reporter(unheard.fileno()))
    return store.get(ModelName.parse("made"))


def stored_logits(model: StoredModel) -> torch.Tensor:
    files = [model.file(layer) for layer in model.tensors]
    return logits(load_model(model.json("config.json"), files, EXACT), TOKENS)


@pytest.mark.parametrize("layout", get_args(Layout))
@pytest.mark.parametrize("tied", [True, False])
def test_the_model_is_that_of_its_values(tmp_path: Path, layout: Layout, tied: bool) -> None:
    """PRQ, PRQ-2, PRQ-3, CLS-5, 07 T4: linears, heads, and MLX's tables; nothing is rounded."""
    folder = tiny_folder(tmp_path / "values", "qwen3", tie_word_embeddings=tied, **SHAPE)
    publish(folder, tmp_path / "published", layout)
    model = created(tmp_path / "published", tmp_path / "store")
    assert model.config.file_type == TYPES.get(layout, layout.removeprefix("mlx "))
    expected = logits(loaded(folder), TOKENS)
    assert relative_error(stored_logits(model), expected) < 1e-4


def test_a_model_of_8_bit_blocks_becomes_mxfp8(tmp_path: Path) -> None:
    """PRQ-4, CLS-3: close to the values of its blocks."""
    folder = tiny_folder(tmp_path / "values", "llama", **SHAPE)
    tensors = load_file(folder / "model.safetensors")
    published: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if "_proj" not in name:
            published[name] = tensor
            continue
        blocks = tensor.abs().amax().reshape(1, 1) / 448  # no matrix here is larger than a block
        published[name] = (tensor / blocks).to(torch.float8_e4m3fn)
        published[f"{name}_scale_inv"] = blocks
        tensors[name] = published[name].float() * blocks
    save_file(tensors, folder / "model.safetensors")
    expected = logits(loaded(folder), TOKENS)
    save_file(published, folder / "model.safetensors")
    edit_config(folder, quantization_config={"weight_block_size": [128, 128]})
    model = created(folder, tmp_path / "store")
    assert model.config.file_type == "mxfp8"
    found = stored_logits(model)
    assert (found - expected).norm() < 0.2 * expected.norm()


@pytest.mark.parametrize("name", MLX_WEIGHTS)
def test_an_imported_weight_of_mlx_has_the_values_that_it_gives(tmp_path: Path, name: str) -> None:
    """PRQ, PRQ-3: weights and values are MLX's own."""
    mode, bits, group = name.split(".")
    path = "layers.0.mlp.up_proj"
    tensors = {
        f"{path}.{part}": MLX[f"{name}.{part}"]
        for part in ("weight", "scales", "biases")
        if f"{name}.{part}" in MLX
    }
    stated = {"mode": mode, "bits": int(bits), "group_size": int(group)}
    found, metadata = imported(tmp_path, tensors, quantization=stated)
    stored = values(found, metadata[f"{path}.weight"], f"{path}.weight")
    slack = 2**-23 if mode == "affine" else 0.0  # MLX may round product and sum once, not twice
    assert (stored - MLX[f"{name}.values"]).abs().max() <= slack * stored.abs().max()
