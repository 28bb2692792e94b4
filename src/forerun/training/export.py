"""Writes a head in the layout of the `speculators` package (EGL-2, EGL-6), with its recipe."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from forerun.base.json_types import JsonObject
from forerun.base.paths import replacing
from forerun.training.head import Head
from forerun.training.target import Target

WEIGHTS, CONFIG, RECIPE = "model.safetensors", "config.json", "recipe.json"


def write_head(folder: Path, target: Target, head: Head, ids: Tensor, recipe: JsonObject) -> None:
    """A checkpoint in `folder`: weights in bfloat16, config, and what the head came from.

    ids  [columns] int64, ascending: the target id of each column
    """
    files = {
        WEIGHTS: save(tensors(head, ids, target.model.facts.vocab_size), {"format": "pt"}),
        CONFIG: _json(config(target, len(ids))),
        RECIPE: _json(recipe),
    }
    for name, content in files.items():
        with replacing(folder / name) as file:
            file.write(content)


def tensors(head: Head, ids: Tensor, vocabulary: int) -> dict[str, Tensor]:
    """The tensors of the checkpoint; column i stands for token i + d2t[i] (EGL-7)."""
    held = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in head.state_dict().items()
    }
    chosen = torch.zeros(vocabulary, dtype=torch.bool)
    chosen[ids] = True
    return {**held, "d2t": ids - torch.arange(len(ids)), "t2d": chosen}


def config(target: Target, columns: int) -> JsonObject:
    """config.json as a loader of such heads reads it."""
    shape, facts = target.shape(columns), target.model.facts
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": columns,
        "target_hidden_size": facts.hidden_size,
        "norm_before_residual": False,
        "norm_before_fc": True,
        "eagle_aux_hidden_state_layer_ids": list(target.taps),
        "transformer_layer_config": {
            "model_type": "llama",
            "vocab_size": facts.vocab_size,
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_hidden_layers": 1,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": shape.eps,
            "rope_theta": shape.rope_theta,
            "max_position_embeddings": facts.max_context,
            "attention_bias": False,
            "mlp_bias": False,
        },
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def _json(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"
