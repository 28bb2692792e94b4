"""config.json, rebuilt from the metadata of a GGUF file (GUF-7).

Everything that the file states is set, also where it equals a default.
"""

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import ImportFailedError
from forerun.base.json_types import JsonObject
from forerun.importer.gguf_reader.metadata import Metadata
from forerun.importer.gguf_reader.names import ROPE_FREQUENCIES, Family

Config: TypeAlias = JsonObject

# How llama 3.1 and later scale their frequencies; the file holds only the outcome (06 ROP-5).
LLAMA3_LOW, LLAMA3_HIGH, LLAMA3_ORIGINAL = 1.0, 4.0, 8192
GEMMA_LOCAL_BASE = 10000.0
GEMMA_27B_LAYERS = 62


@dataclass(frozen=True, slots=True)
class Facts:
    """What the tensors say and the metadata may leave out."""

    vocabulary: int  # rows of the embedding
    tied: bool  # no head of its own
    biased: bool  # attention projections have biases
    rope_factors: NDArray[np.float32] | None  # the tensor rope_freqs


@dataclass(frozen=True, slots=True)
class Heads:
    query: int
    kv: int
    size: int


def heads_of(metadata: Metadata) -> Heads:
    """Head counts and size. ImportFailedError where values and keys differ in size."""
    arch = metadata.text("general.architecture")
    query = metadata.whole(f"{arch}.attention.head_count")
    kv = metadata.whole_or(f"{arch}.attention.head_count_kv", query)
    hidden = metadata.whole(f"{arch}.embedding_length")
    if query < 1 or kv < 1:
        raise ImportFailedError(f"{metadata.file}: {arch}.attention.head_count is {query}, {kv}")
    size = metadata.whole_or(f"{arch}.attention.key_length", hidden // query)
    if metadata.whole_or(f"{arch}.attention.value_length", size) != size:
        raise ImportFailedError(
            f"{metadata.file}: {arch}.attention.value_length is not key_length; heads whose "
            f"values are of another size than their keys are not served"
        )
    return Heads(query, kv, size)


def build_config(metadata: Metadata, family: Family, facts: Facts) -> Config:
    """The config of the checkpoint that the file was made from, as far as it is known."""
    arch = metadata.text("general.architecture")
    heads = heads_of(metadata)
    config: Config = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": facts.vocabulary,
        "hidden_size": metadata.whole(f"{arch}.embedding_length"),
        "intermediate_size": metadata.whole(f"{arch}.feed_forward_length"),
        "num_hidden_layers": metadata.whole(f"{arch}.block_count"),
        "num_attention_heads": heads.query,
        "num_key_value_heads": heads.kv,
        "head_dim": heads.size,
        "rms_norm_eps": metadata.number(f"{arch}.attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": metadata.whole(f"{arch}.context_length"),
        "attention_bias": facts.biased,
        "tie_word_embeddings": facts.tied,
    }
    rope = _rope(metadata, arch, heads, facts)
    if arch == "gemma3":
        return config | _gemma3(metadata, heads, rope)
    config |= {"hidden_act": "silu", "rope_parameters": rope}
    if arch == "qwen3moe":
        return config | _experts(metadata, arch)
    if metadata.whole_or(f"{arch}.expert_count", 0) > 0:
        raise ImportFailedError(
            f"{metadata.file}: {arch}.expert_count is not 0, and {family.architecture} has no "
            f"experts; import the model from its safetensors"
        )
    return config


def _rope(metadata: Metadata, arch: str, heads: Heads, facts: Facts) -> Config:
    """The rotary parameters in the form of ROP-1."""
    base = f"{arch}.rope.freq_base"
    theta = metadata.number(base) if metadata.has(base) else 10000.0
    dimensions = metadata.whole_or(f"{arch}.rope.dimension_count", heads.size)
    if dimensions != heads.size:
        raise ImportFailedError(
            f"{metadata.file}: {arch}.rope.dimension_count is {dimensions}, and these models turn "
            f"all {heads.size} dimensions of a head"
        )
    rope: Config = {"rope_type": "default", "rope_theta": theta}
    kind = _scaling_kind(metadata, arch)
    if facts.rope_factors is not None:
        if kind != "none":
            raise ImportFailedError(
                f"{metadata.file} scales its rotary frequencies twice: by {ROPE_FREQUENCIES} and "
                f"by {arch}.rope.scaling.type {kind!r}"
            )
        return rope | llama3_parameters(facts.rope_factors, theta, dimensions)
    if kind == "linear":
        return rope | {"rope_type": "linear", "factor": _scaling_factor(metadata, arch)}
    if kind == "yarn":
        return rope | _yarn(metadata, arch)
    return rope


def _scaling_kind(metadata: Metadata, arch: str) -> str:
    kind = metadata.text_or(f"{arch}.rope.scaling.type", None)
    if kind is None:
        return "linear" if metadata.has(f"{arch}.rope.scale_linear") else "none"
    if kind not in ("none", "linear", "yarn"):
        raise ImportFailedError(
            f"{metadata.file}: {arch}.rope.scaling.type is {kind!r}; it must be none, linear or "
            f"yarn"
        )
    return kind


def _scaling_factor(metadata: Metadata, arch: str) -> float:
    old = f"{arch}.rope.scale_linear"
    return metadata.number(old if metadata.has(old) else f"{arch}.rope.scaling.factor")


def _yarn(metadata: Metadata, arch: str) -> Config:
    prefix = f"{arch}.rope.scaling."
    if metadata.has(f"{prefix}yarn_log_multiplier"):
        raise ImportFailedError(
            f"{metadata.file} states {prefix}yarn_log_multiplier, which is not implemented"
        )
    factor = metadata.number(f"{prefix}factor")
    yarn: Config = {"rope_type": "yarn", "factor": factor}
    original = f"{prefix}original_context_length"
    if metadata.has(original):
        yarn["original_max_position_embeddings"] = metadata.whole(original)
    # The file's factor comes on top of what yarn computes itself; config.json states the product.
    key = f"{prefix}attn_factor"
    if metadata.has(key):
        yarn["attention_factor"] = metadata.number(key) * (0.1 * math.log(max(factor, 1.0)) + 1.0)
    for stated, ours in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
        if metadata.has(f"{prefix}{stated}"):
            yarn[ours] = metadata.number(f"{prefix}{stated}")
    return yarn


def llama3_parameters(factors: NDArray[np.float32], theta: float, dimensions: int) -> Config:
    """The scaling that gives the tensor rope_freqs, checked against it (GUF-6)."""
    factor = float(factors.max(initial=1.0))
    expected = llama3_factors(factor, theta, dimensions)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise ImportFailedError(
            f"tensor {ROPE_FREQUENCIES} is not what llama 3 scaling by {factor:g} gives; other "
            f"frequency factors are not implemented"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LLAMA3_LOW,
        "high_freq_factor": LLAMA3_HIGH,
        "original_max_position_embeddings": LLAMA3_ORIGINAL,
    }


def llama3_factors(factor: float, theta: float, dimensions: int) -> NDArray[np.float64]:
    """What each frequency is divided by (06 ROP-5)."""
    frequencies = theta ** (-np.arange(0, dimensions, 2, dtype=np.float64) / dimensions)
    turns = LLAMA3_ORIGINAL * frequencies / (2 * math.pi)  # within the original context
    share = np.clip((turns - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW), 0, 1)
    divisors: NDArray[np.float64] = 1 / ((1 - share) / factor + share)
    return divisors


def _gemma3(metadata: Metadata, heads: Heads, rope: Config) -> Config:
    """06 GM3-1, GM3-6. The 27B alone scales its scores by hidden size over heads."""
    layers = metadata.whole("gemma3.block_count")
    hidden = metadata.whole("gemma3.embedding_length")
    local = "gemma3.rope.freq_base_swa"
    softcap = "gemma3.final_logit_softcapping"
    sliding: Config = {
        "rope_type": "default",
        "rope_theta": metadata.number(local) if metadata.has(local) else GEMMA_LOCAL_BASE,
    }
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": hidden // heads.query
        if layers == GEMMA_27B_LAYERS
        else heads.size,
        "sliding_window": metadata.whole("gemma3.attention.sliding_window"),
        "sliding_window_pattern": metadata.whole_or("gemma3.attention.sliding_window_pattern", 6),
        "final_logit_softcapping": metadata.number(softcap) if metadata.has(softcap) else None,
        "attn_logit_softcapping": None,
        "rope_parameters": {"full_attention": rope, "sliding_attention": sliding},
    }


def _experts(metadata: Metadata, arch: str) -> Config:
    """06 Q3M. Files of this family exist only for models that renormalise the chosen experts."""
    return {
        "num_experts": metadata.whole(f"{arch}.expert_count"),
        "num_experts_per_tok": metadata.whole(f"{arch}.expert_used_count"),
        "moe_intermediate_size": metadata.whole(f"{arch}.expert_feed_forward_length"),
        "norm_topk_prob": metadata.flag_or(f"{arch}.expert_weights_norm", True),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
