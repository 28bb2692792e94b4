"""config.json as it is rebuilt from a GGUF file's metadata (GUF-7), and tensor names (GUF-6)."""

import math
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from forerun.base.errors import ImportFailedError
from forerun.importer.gguf_reader.config import (
    Facts,
    build_config,
    heads_of,
    llama3_factors,
    llama3_parameters,
)
from forerun.importer.gguf_reader.metadata import Metadata, Value
from forerun.importer.gguf_reader.names import (
    FAMILIES,
    family_of,
    permuted_heads,
    required_names,
    stored_name,
    stores_one_more,
)
from unit.importer.gguf_files import shape_metadata

SHAPE = {
    "max_position_embeddings": 4096,
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
}
FACTS = Facts(vocabulary=1000, tied=True, biased=False, rope_factors=None)


def config_for(arch: str, facts: Facts = FACTS, **extra: Value) -> dict[str, Any]:
    """`extra` adds keys below the architecture's prefix, dots written as two underscores."""
    added = {f"{arch}.{key.replace('__', '.')}": value for key, value in extra.items()}
    values: dict[str, Any] = shape_metadata(arch, SHAPE) | {"general.architecture": arch} | added
    return build_config(Metadata("a.gguf", values), family_of(arch), facts)


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3", "qwen3moe"])
def test_everything_that_the_file_states_is_set(arch: str) -> None:
    """GUF-7: shapes and epsilon, also where they equal a family's defaults."""
    extra: dict[str, Value] = {
        "gemma3": {"attention__sliding_window": 512},
        "qwen3moe": {"expert_count": 16, "expert_used_count": 4, "expert_feed_forward_length": 96},
    }.get(arch, {})
    config = config_for(arch, **extra)
    assert {key: config[key] for key in SHAPE} == SHAPE
    assert config["vocab_size"] == 1000
    assert config["architectures"] == [FAMILIES[arch].architecture]
    assert config["tie_word_embeddings"] is True


def test_an_absent_head_size_and_kv_count_follow_from_the_others() -> None:
    values: dict[str, Any] = shape_metadata("llama", SHAPE) | {"general.architecture": "llama"}
    for key in ("key_length", "value_length", "head_count_kv"):
        del values[f"llama.attention.{key}"]
    heads = heads_of(Metadata("a.gguf", values))
    assert (heads.query, heads.kv, heads.size) == (8, 8, 32)


def test_an_unknown_architecture_is_named() -> None:
    """GUF-7, F13."""
    with pytest.raises(ImportFailedError, match=r"'mamba' cannot be imported.*gemma3, llama"):
        family_of("mamba")


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ({"expert_count": 8}, "llama.expert_count"),
        ({"attention__value_length": 32}, "value_length"),
        ({"rope__dimension_count": 32}, "rope.dimension_count"),
        ({"rope__scaling__type": "longrope"}, "longrope"),
        ({"attention__head_count": 0}, "head_count"),
        (
            {
                "rope__scaling__type": "yarn",
                "rope__scaling__factor": 4.0,
                "rope__scaling__yarn_log_multiplier": 0.1,
            },
            "yarn_log_multiplier",
        ),
    ],
)
def test_what_would_change_the_numbers_and_is_not_served_is_refused(
    extra: dict[str, Value], named: str
) -> None:
    """GUF-7: never imported as if it were not there."""
    with pytest.raises(ImportFailedError, match=named):
        config_for("llama", **extra)


def test_rope_kinds_without_frequencies() -> None:
    """GUF-7, F09: theta and scaling stand in rope_parameters (06 ROP-1)."""
    assert config_for("llama")["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e4}
    linear = config_for(
        "qwen3", rope__freq_base=5e5, rope__scaling__type="linear", rope__scaling__factor=2.0
    )
    wanted = {"rope_type": "linear", "rope_theta": 5e5, "factor": 2.0}
    assert linear["rope_parameters"] == wanted
    old = config_for("qwen3", rope__freq_base=5e5, rope__scale_linear=2.0)
    assert old["rope_parameters"] == wanted
    none = config_for("qwen3", rope__scaling__type="none", rope__scaling__factor=8.0)
    assert none["rope_parameters"]["rope_type"] == "default"


def test_yarn_states_what_the_file_states() -> None:
    """GUF-7: the file's own attention factor multiplies the one that yarn computes (06 ROP-6)."""
    stated: dict[str, Value] = {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": 4.0,
        "rope__scaling__original_context_length": 1024,
    }
    plain = config_for("qwen3", **stated)["rope_parameters"]
    assert plain == {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
    }
    more = config_for(
        "qwen3", **stated, rope__scaling__attn_factor=0.5, rope__scaling__yarn_beta_fast=16.0
    )["rope_parameters"]
    assert more["attention_factor"] == pytest.approx(0.5 * (0.1 * math.log(4) + 1))
    assert more["beta_fast"] == 16.0


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recovered_from_the_factors(factor: float) -> None:
    """GUF-6: rope_freqs is recomputed and compared; the reference is transformers'."""
    config = LlamaConfig(
        head_dim=64,
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=131072,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, device="cpu")
    plain = 5e5 ** (-np.arange(0, 64, 2) / 64)
    factors = (plain / scaled.numpy()).astype(np.float32)
    facts = Facts(vocabulary=1000, tied=False, biased=False, rope_factors=factors)
    rope = config_for("llama", facts, rope__freq_base=5e5)["rope_parameters"]
    assert rope == {
        **config.rope_parameters,
        "factor": pytest.approx(factor, rel=1e-5),
    }


def test_other_frequency_factors_are_refused() -> None:
    """GUF-6: a tensor that llama 3 scaling does not give is never ignored."""
    factors = llama3_factors(8.0, 5e5, 64).astype(np.float32)
    factors[12] *= 1.01
    with pytest.raises(ImportFailedError, match="rope_freqs"):
        llama3_parameters(factors, 5e5, 64)
    with pytest.raises(ImportFailedError, match="rope_freqs"):
        llama3_parameters(factors[:8], 5e5, 64)


def test_gemma_scales_by_head_size_but_for_the_27b() -> None:
    """GUF-7, 06 GM3-5, GM3-6."""
    window: dict[str, Value] = {"attention__sliding_window": 1024, "rope__freq_base": 1e6}
    small = config_for("gemma3", **window, rope__scaling__type="linear", rope__scaling__factor=8.0)
    assert small["query_pre_attn_scalar"] == 64
    assert small["rope_parameters"] == {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert config_for("gemma3", **window, block_count=62)["query_pre_attn_scalar"] == 256 // 8


@pytest.mark.parametrize(
    ("arch", "name", "wanted"),
    [
        ("llama", "token_embd.weight", "model.embed_tokens.weight"),
        ("llama", "output.weight", "lm_head.weight"),
        ("llama", "output_norm.weight", "model.norm.weight"),
        ("llama", "blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
        ("llama", "blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight"),
        ("llama", "blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("qwen3", "blk.0.attn_k_norm.weight", "model.layers.0.self_attn.k_norm.weight"),
        ("qwen3", "blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj.weight"),
        ("gemma3", "blk.0.ffn_norm.weight", "model.layers.0.pre_feedforward_layernorm.weight"),
        (
            "gemma3",
            "blk.0.post_attention_norm.weight",
            "model.layers.0.post_attention_layernorm.weight",
        ),
        (
            "gemma3",
            "blk.0.post_ffw_norm.weight",
            "model.layers.0.post_feedforward_layernorm.weight",
        ),
        ("qwen3moe", "blk.1.ffn_gate_inp.weight", "model.layers.1.mlp.gate.weight"),
        ("qwen3moe", "blk.1.ffn_up_exps.weight", "model.layers.1.mlp.experts.up_proj.weight"),
        ("llama", "blk.0.attn_q_norm.weight", None),
        ("llama", "rope_freqs.weight", None),
        ("llama", "blk.0.attn_rot_embd", None),
    ],
)
def test_names(arch: str, name: str, wanted: str | None) -> None:
    """GUF-6."""
    assert stored_name(name, FAMILIES[arch]) == wanted


def test_only_llama_permutes_and_only_gemma_adds_one() -> None:
    """GUF-4, GUF-5: q by its heads, k by the key heads; all norms of a gemma."""
    llama, gemma = FAMILIES["llama"], FAMILIES["gemma3"]
    for part, heads in (("attn_q.weight", 8), ("attn_k.bias", 2), ("attn_v.weight", 0)):
        assert permuted_heads(f"blk.3.{part}", llama, 8, 2) == heads
        assert permuted_heads(f"blk.3.{part}", gemma, 8, 2) == 0
    for name in ("blk.0.attn_q_norm.weight", "output_norm.weight", "blk.0.post_ffw_norm.weight"):
        assert stores_one_more(name, gemma)
        assert not stores_one_more(name, llama)
    assert not stores_one_more("blk.0.attn_q.weight", gemma)


def test_required_tensors_cover_every_layer() -> None:
    """F13: no tensor is left to chance; a head may be tied."""
    names = required_names(FAMILIES["llama"], 2)
    assert len(names) == 2 + 2 * 9
    assert "output.weight" not in names
    assert all(stored_name(name, FAMILIES["llama"]) for name in names)
