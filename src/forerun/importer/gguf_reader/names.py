"""From GGUF tensor names to those of safetensors checkpoints, by architecture (GUF-6)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from forerun.base.errors import ImportFailedError

_BLOCK = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_TOP = re.compile(r"([a-z_]+)\.(weight|bias)")

ROPE_FREQUENCIES = "rope_freqs.weight"

_TOP_LEVEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_PRE_NORM = {"ffn_norm": "post_attention_layernorm"}
_SANDWICH_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True)
class Family:
    """What is particular to the files of one GGUF architecture."""

    architecture: str  # what config.json calls it
    model_type: str
    blocks: Mapping[str, str]
    permuted: bool = False  # q and k rows (GUF-4)
    norms_plus_one: bool = False  # GUF-5
    required: frozenset[str] = field(default_factory=frozenset)  # parts that every block has


def _dense(architecture: str, model_type: str, *parts: Mapping[str, str], **quirks: bool) -> Family:
    blocks = {theirs: ours for part in parts for theirs, ours in part.items()}
    return Family(architecture, model_type, blocks, required=frozenset(blocks), **quirks)


FAMILIES = {
    "llama": _dense("LlamaForCausalLM", "llama", _ATTENTION, _MLP, _PRE_NORM, permuted=True),
    "qwen3": _dense("Qwen3ForCausalLM", "qwen3", _ATTENTION, _HEAD_NORMS, _MLP, _PRE_NORM),
    "gemma3": _dense(
        "Gemma3ForCausalLM",
        "gemma3_text",
        _ATTENTION,
        _HEAD_NORMS,
        _MLP,
        _SANDWICH_NORMS,
        norms_plus_one=True,
    ),
    "qwen3moe": Family(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        _ATTENTION | _HEAD_NORMS | _PRE_NORM | _MLP | _EXPERTS,
        required=frozenset(_ATTENTION | _HEAD_NORMS | _PRE_NORM),
    ),
}


def family_of(architecture: str) -> Family:
    """Raises ImportFailedError naming an architecture that has no entry here."""
    if architecture not in FAMILIES:
        raise ImportFailedError(
            f"GGUF architecture {architecture!r} cannot be imported; those that can are "
            f"{', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[architecture]


def stored_name(name: str, family: Family) -> str | None:
    """The checkpoint's name of a tensor, None for one that the family does not know."""
    block = _BLOCK.fullmatch(name)
    if block and block[2] in family.blocks:
        return f"model.layers.{block[1]}.{family.blocks[block[2]]}.{block[3]}"
    top = _TOP.fullmatch(name)
    if top and top[1] in _TOP_LEVEL:
        return f"{_TOP_LEVEL[top[1]]}.{top[2]}"
    return None


def required_names(family: Family, layers: int) -> list[str]:
    """GGUF names of the weights without which no model of the family works (F13)."""
    blocks = [f"blk.{i}.{part}.weight" for i in range(layers) for part in sorted(family.required)]
    return ["token_embd.weight", *blocks, "output_norm.weight"]


def permuted_heads(name: str, family: Family, heads: int, kv_heads: int) -> int:
    """Heads of a q or k projection whose rows the file interleaves, 0 for other tensors."""
    block = _BLOCK.fullmatch(name)
    if not (family.permuted and block):
        return 0
    return {"attn_q": heads, "attn_k": kv_heads}.get(block[2], 0)


def stores_one_more(name: str, family: Family) -> bool:
    """Whether the tensor is a norm that the file holds as 1 + weight."""
    return family.norms_plus_one and name.endswith("norm.weight")
