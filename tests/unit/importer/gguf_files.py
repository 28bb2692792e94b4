"""GGUF files for tests, written by the gguf package, and what an import makes of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray
from safetensors.numpy import load_file

Tensors = Mapping[str, tuple[NDArray[Any], GGMLQuantizationType]]

F32 = GGMLQuantizationType.F32
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# GGUF names by the parts of a checkpoint's, which the importer maps the other way.
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
_NORMS = {
    "gemma3": {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    }
}
_PRE_NORM = {"post_attention_layernorm": "ffn_norm"}
_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(
    path: Path, architecture: str, metadata: Mapping[str, object], tensors: Tensors
) -> Path:
    """Python values pick the type of a key: whole numbers become UINT32, floats FLOAT32.

    Quantised tensors are given as the bytes of their blocks, [..., row bytes].
    """
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        add_value(writer, key, value)
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_value(writer: GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        assert isinstance(value, list)
        writer.add_array(key, value)


def shape_metadata(architecture: str, config: Mapping[str, Any]) -> dict[str, object]:
    """The model keys of a GGUF file for a checkpoint's config.json."""
    prefix = f"{architecture}."
    return {
        f"{prefix}context_length": config["max_position_embeddings"],
        f"{prefix}embedding_length": config["hidden_size"],
        f"{prefix}block_count": config["num_hidden_layers"],
        f"{prefix}feed_forward_length": config["intermediate_size"],
        f"{prefix}attention.head_count": config["num_attention_heads"],
        f"{prefix}attention.head_count_kv": config["num_key_value_heads"],
        f"{prefix}attention.key_length": config["head_dim"],
        f"{prefix}attention.value_length": config["head_dim"],
        f"{prefix}attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
    }


def tokenizer_metadata(folder: Path, pre: str = "gpt-2") -> dict[str, object]:
    """The tokenizer keys of a GGUF file for a folder's byte-level tokenizer.json."""
    document = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"]: token for token in document["added_tokens"]}
    ids = {token["content"]: index for index, token in special.items()}
    by_id = {index: token for token, index in (document["model"]["vocab"] | ids).items()}
    tokens = [by_id.get(i, f"[PAD{i}]") for i in range(max(by_id) + 1)]
    types = [_type(i, by_id, special) for i in range(len(tokens))]
    merges = [m if isinstance(m, str) else " ".join(m) for m in document["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        **({"tokenizer.ggml.merges": merges} if merges else {}),
    }


def _type(index: int, by_id: Mapping[int, str], special: Mapping[int, dict[str, Any]]) -> int:
    if index in special:
        return CONTROL if special[index]["special"] else USER_DEFINED
    return NORMAL if index in by_id else UNUSED


def gguf_name(name: str, architecture: str) -> str:
    """What a GGUF file calls a checkpoint's tensor."""
    stem, _, last = name.rpartition(".")
    if stem in _TOP:
        return f"{_TOP[stem]}.{last}"
    _, _, layer, part = stem.split(".", 3)
    parts = _PARTS | _NORMS.get(architecture, _PRE_NORM)
    return f"blk.{layer}.{parts[part]}.{last}"


def interleave(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """q and k rows as llama files hold them: the two halves of a head take turns."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def _stacked(tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Experts as GGUF files have them: all of a layer's projections in one tensor."""
    stacks: dict[str, dict[int, NDArray[Any]]] = {}
    for name, values in tensors.items():
        path, found, rest = name.partition(".experts.")
        index, _, part = rest.partition(".")
        key, expert = (f"{path}.experts.{part}", int(index)) if found else (name, 0)
        stacks.setdefault(key, {})[expert] = values
    return {
        name: np.stack([stack[i] for i in range(len(stack))]) if ".experts." in name else stack[0]
        for name, stack in stacks.items()
    }


def convert_folder(
    folder: Path,
    path: Path,
    architecture: str,
    *,
    matrices: GGMLQuantizationType = F32,
    extra: Mapping[str, object] | None = None,
) -> Path:
    """A checkpoint of float32 safetensors as the GGUF file that llama.cpp's converter writes."""
    config = json.loads((folder / "config.json").read_text())
    tensors: dict[str, tuple[NDArray[Any], GGMLQuantizationType]] = {}
    for name, values in sorted(_stacked(load_file(folder / "model.safetensors")).items()):
        kind = matrices if values.ndim > 1 else F32
        if architecture == "llama" and ".q_proj." in name:
            values = interleave(values, config["num_attention_heads"])
        if architecture == "llama" and ".k_proj." in name:
            values = interleave(values, config["num_key_value_heads"])
        if architecture == "gemma3" and name.endswith("norm.weight"):
            values = values + np.float32(1)
        tensors[gguf_name(name, architecture)] = (quantize(values, kind), kind)
    rope = config.get("rope_parameters") or {}
    theta = rope.get("full_attention", rope).get("rope_theta", 10000.0)
    metadata = {
        **shape_metadata(architecture, config),
        f"{architecture}.rope.freq_base": float(theta),
        **tokenizer_metadata(folder),
        "tokenizer.ggml.eos_token_id": 258,
        "tokenizer.ggml.eot_token_id": 256,
        **(extra or {}),
    }
    return write_gguf(path, architecture, metadata, tensors)
