"""GGUF files whose weights get another type: the values of the gguf package, quantised anew."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from safetensors.torch import load, load_file
from torch import Tensor

from fixtures.checkpoints import edit_tensors
from fixtures.tiny import tiny_folder
from forerun.base.errors import ForerunError
from forerun.importer.gguf_reader import tensors
from forerun.importer.gguf_reader.config import Heads
from forerun.importer.gguf_reader.file import open_gguf
from forerun.importer.gguf_reader.names import FAMILIES
from forerun.importer.plan import alone
from forerun.importer.policy.choose import chooser
from forerun.importer.sources import gguf_source
from forerun.importer.write import write_tensors
from forerun.quant.codec import quantise
from forerun.quant.formats import QuantFormat
from forerun.quant.parts import stored_parts
from unit.importer.gguf_files import convert_folder, write_gguf
from unit.importer.source_folders import written

GATE = "model.layers.0.mlp.gate_proj.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"
TABLE = "model.embed_tokens.weight"
SHAPE: dict[str, object] = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}


def rounded(values: NDArray[np.float32], kind: str) -> Tensor:
    """What a file's blocks of that type stand for."""
    type_ = GGMLQuantizationType[kind]
    return torch.from_numpy(np.array(dequantize(quantize(values, type_), type_)))


def requantised(
    folder: Path, kind: str, wish: str, family: str = "llama"
) -> tuple[dict[str, Tensor], dict[str, dict[str, str]]]:
    path = convert_folder(folder, folder / "a.gguf", family, matrices=GGMLQuantizationType[kind])
    return written(gguf_source(path, quantize=wish).checkpoint)


def same_parts(found: dict[str, Tensor], name: str, values: Tensor, form: QuantFormat) -> bool:
    return all(
        torch.equal(found[name + suffix], part)
        for suffix, part in stored_parts(quantise(values, form)).items()
    )


@pytest.mark.parametrize(
    ("kind", "wish", "form", "eight"),
    [
        ("Q8_0", "int4", QuantFormat("int4", 64), None),
        ("Q5_1", "int4", QuantFormat("int4", 64), QuantFormat("int8", 64)),
        ("Q4_0", "nvfp4", QuantFormat("nvfp4", 16), QuantFormat("mxfp8", 32)),
        ("F16", "mxfp4", QuantFormat("mxfp4", 32), QuantFormat("mxfp8", 32)),
        ("F32", "mxfp8", QuantFormat("mxfp8", 32), QuantFormat("mxfp8", 32)),
    ],
)
def test_values_of_blocks_are_quantised_by_policy(
    tmp_path: Path, kind: str, wish: str, form: QuantFormat, eight: QuantFormat | None
) -> None:
    """GUF-2, GUF-4, POL-5: by way of float32; rows of llama's queries are in the original order."""
    folder = tiny_folder(tmp_path, "llama", **SHAPE)
    found, metadata = requantised(folder, kind, wish)
    for name, original in load_file(folder / "model.safetensors").items():
        if name in (GATE, QUERY):
            assert metadata[name]["quant_type"] == form.name
            assert same_parts(found, name, rounded(original.numpy(), kind), form)
        if name == DOWN and eight is not None:
            assert same_parts(found, name, rounded(original.numpy(), kind), eight)


@pytest.mark.parametrize(
    ("kind", "wish", "kept"),
    [("Q4_0", "int4", "int4"), ("Q4_1", "int8", "int4"), ("Q8_0", "int8", "int8")],
)
def test_blocks_of_as_few_bits_keep_their_values(
    tmp_path: Path, kind: str, wish: str, kept: str
) -> None:
    """GUF-2: what is an affine group already is not rounded again for nothing."""
    folder = tiny_folder(tmp_path, "qwen3", **SHAPE)
    asked, metadata = requantised(folder, kind, wish, "qwen3")
    plain, _ = requantised(folder, kind, "", "qwen3")
    assert asked.keys() == plain.keys()
    assert all(torch.equal(asked[name], plain[name]) for name in plain)
    assert metadata[DOWN] == {"quant_type": kept, "group_size": "32"}


def test_what_the_policy_declines_comes_as_it_would_without_a_wish(tmp_path: Path) -> None:
    """GUF-2, POL-1: tables and norms; only matrices that the policy takes are touched."""
    folder = tiny_folder(tmp_path, "qwen3", **SHAPE)
    asked, metadata = requantised(folder, "Q8_0", "int4", "qwen3")
    plain, _ = requantised(folder, "Q8_0", "", "qwen3")
    for name in plain:
        if "norm" in name or name.startswith(TABLE):
            assert torch.equal(asked[name], plain[name]), name
    assert metadata[TABLE]["quant_type"] == "int8"


@pytest.mark.parametrize("step", [1, 1000, 10**6])
def test_k_blocks_are_quantised_in_slabs_of_any_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """GUF-1, GUF-2: rows are independent, so what is read at a time changes nothing."""
    monkeypatch.setattr(tensors, "CHUNK_BYTES", step)
    kind = GGMLQuantizationType.Q6_K
    _, size = GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(0).integers(0, 256, (40, 2, size), np.uint8)
    blocks[..., -2:] = np.array([0.01], "<f2").view(np.uint8)  # each block's scale
    blocks = blocks.reshape(40, -1)
    held = {"blk.0.ffn_gate.weight": (blocks, kind)}
    file = open_gguf(write_gguf(tmp_path / "a.gguf", "qwen3", {}, held))
    choose = chooser({}, "int4")
    (plan,) = tensors.plan_tensors(file, FAMILIES["qwen3"], Heads(1, 1, 1), choose).plans
    sink = io.BytesIO()
    write_tensors(tensors.tensor_file(file, file.tensors[0], alone(plan)), sink)
    values = torch.from_numpy(np.array(dequantize(blocks, kind)))
    assert same_parts(load(sink.getvalue()), GATE, values, QuantFormat("int4", 64))


def test_a_nan_is_named(tmp_path: Path) -> None:
    """F13."""
    folder = tiny_folder(tmp_path, "llama", **SHAPE)

    def spoil(held: dict[str, Tensor]) -> dict[str, Tensor]:
        held[GATE][0, 0] = float("nan")
        return held

    edit_tensors(folder, spoil)
    with pytest.raises(ForerunError, match=r"tensor blk\.0\.ffn_gate\.weight"):
        requantised(folder, "F32", "int8")


@pytest.mark.parametrize(("tied", "kind"), [(True, "int8"), (False, "")])
def test_a_table_that_is_the_head_too_is_quantised_as_one(
    tmp_path: Path, tied: bool, kind: str
) -> None:
    """POL-1, POL-3: in a file without `output.weight` (decision 0022)."""
    folder = tiny_folder(tmp_path, "llama", tie_word_embeddings=tied, **SHAPE)
    _, metadata = requantised(folder, "F16", "int4")
    assert metadata[TABLE].get("quant_type", "") == kind
