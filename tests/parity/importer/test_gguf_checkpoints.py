"""A checkpoint that went through a GGUF file comes back as it was (GUF-9, 06 T15)."""

import io
import json
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load, load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from fixtures.tiny import Family, tiny_folder
from forerun.importer.gguf_reader.checkpoint import GgufCheckpoint, read_checkpoint
from forerun.importer.gguf_reader.file import open_gguf
from forerun.importer.write import write_tensors
from unit.importer.gguf_files import convert_folder

FAMILIES: list[Family] = ["llama", "qwen3", "gemma3"]
TOKENS = torch.tensor([[5, 200, 17, 17, 99, 0, 258, 64, 31, 7, 80, 12]])


def imported_tensors(checkpoint: GgufCheckpoint) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for blob in checkpoint.blobs:
        sink = io.BytesIO()
        write_tensors(checkpoint.open(blob), sink)
        tensors |= load(sink.getvalue())
    return tensors


def model_of(
    checkpoint: GgufCheckpoint, tensors: dict[str, Tensor], folder: Path
) -> PreTrainedModel:
    """transformers' model of the rebuilt config and the imported tensors."""
    (folder / "config.json").write_text(json.dumps(checkpoint.config))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    missing, surplus = model.load_state_dict(tensors, strict=False)
    assert surplus == []
    assert set(missing) <= {"lm_head.weight"}  # the tied head
    model.tie_weights()
    return model.eval()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_converted_checkpoint_is_the_same_model(
    family: Family, tied: bool, tmp_path: Path
) -> None:
    """GUF-3, GUF-4, GUF-5, GUF-6, GUF-7, GUF-9, PLN-6: equal tensors (but for the rounding of a
    norm's added one) and equal logits of the rebuilt config."""
    # A GGUF file states no attention scale; but for one size of gemma it follows the head size.
    scale = {"query_pre_attn_scalar": 24} if family == "gemma3" else {}
    folder = tiny_folder(tmp_path / "original", family, tie_word_embeddings=tied, **scale)
    original = load_file(folder / "model.safetensors")
    extra = gemma_keys(folder) if family == "gemma3" else {}
    checkpoint = read_checkpoint(
        open_gguf(convert_folder(folder, tmp_path / "a.gguf", family, extra=extra))
    )
    tensors = imported_tensors(checkpoint)
    assert set(tensors) == set(original)
    for name, tensor in original.items():
        slack = 2**-22 if family == "gemma3" and name.endswith("norm.weight") else 0.0
        assert (tensors[name] - tensor).abs().max() <= slack, name
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(folder)(TOKENS).logits
        found = model_of(checkpoint, tensors, tmp_path)(TOKENS).logits
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def gemma_keys(folder: Path) -> dict[str, object]:
    """The tiny gemma's layer kinds alternate, which a GGUF states as a pattern of two."""
    config = json.loads((folder / "config.json").read_text())
    return {
        "gemma3.attention.sliding_window": config["sliding_window"],
        "gemma3.attention.sliding_window_pattern": 2,
    }


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_llama_rows_are_put_back_head_by_head(kv_heads: int, tmp_path: Path) -> None:
    """GUF-4: q by its own heads, k by the key heads, whole quantised rows at a time."""
    shape = {"hidden_size": 64, "num_key_value_heads": kv_heads, "head_dim": 16}
    folder = tiny_folder(tmp_path / "original", "llama", **shape)
    kind = GGMLQuantizationType.Q8_0
    path = convert_folder(folder, tmp_path / "a.gguf", "llama", matrices=kind)
    checkpoint = read_checkpoint(open_gguf(path))
    tensors = imported_tensors(checkpoint)
    for name, original in load_file(folder / "model.safetensors").items():
        if ".q_proj." not in name and ".k_proj." not in name:
            continue
        q = tensors[name].view(torch.uint8).reshape(len(original), -1, 32).float()
        scale, bias = (tensors[f"{name}.{part}"].float()[..., None] for part in ("scale", "bias"))
        values = (scale * q + bias).reshape(original.shape)
        step = original.abs().max() / 127
        assert (values - original).abs().max() <= 0.51 * step, name
