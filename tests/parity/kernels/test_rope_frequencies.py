"""Inverse frequencies of every rope kind against transformers' (T13, ROP-7)."""

from collections.abc import Mapping

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from forerun.nn.rope import from_config, inverse_frequencies

CONTEXT, THETA = 4096, 5e5
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}

STATED: list[Mapping[str, object]] = [
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 4.0},
    LLAMA3,
    {**LLAMA3, "high_freq_factor": 32.0, "low_freq_factor": 2.0},
    {key: value for key, value in LLAMA3.items() if not key.startswith("original")},
    YARN,
    {**YARN, "truncate": False},
    {**YARN, "mscale": 1.2, "mscale_all_dim": 0.7},
    {**YARN, "mscale": 1.2, "mscale_all_dim": 0.7, "attention_factor": 1.5},
    {**YARN, "mscale": 1.2},  # alone it counts for nothing
    {**YARN, "attention_factor": 0.9, "beta_fast": 16.0, "beta_slow": 2.0},
    {**YARN, "factor": 0.5},  # no magnification below 1
    {**YARN, "original_max_position_embeddings": 64},  # the lower bound clamped
    {**YARN, "rope_theta": 10.0},  # the upper one
    {**YARN, "original_max_position_embeddings": 6},  # both at 0
]


def agrees(stated: Mapping[str, object], head_dim: int) -> None:
    fields = {"max_position_embeddings": CONTEXT, "rope_parameters": {"rope_theta": THETA} | stated}
    config = LlamaConfig(
        hidden_size=head_dim * 2,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_theta": THETA} | dict(stated),
    )
    if stated["rope_type"] == "default":
        want, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        want, factor = ROPE_INIT_FUNCTIONS[str(stated["rope_type"])](config, "cpu")
    got, our_factor = inverse_frequencies(from_config(fields, head_dim))
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)
    assert our_factor == pytest.approx(factor, rel=1e-6)


@pytest.mark.parametrize("stated", STATED, ids=lambda s: " ".join(str(v) for v in s.values()))
@pytest.mark.parametrize("head_dim", [64, 128, 10])
def test_frequencies_are_transformers(stated: Mapping[str, object], head_dim: int) -> None:
    """T13, ROP-2, ROP-3, ROP-4, ROP-5, ROP-6, ROP-7"""
    agrees(stated, head_dim)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_a_part_of_the_head_turns(kind: str) -> None:
    """T13, ROP-2: frequencies follow from the rotated dimensions alone."""
    stated = {**LLAMA3, **YARN, "rope_type": kind, "partial_rotary_factor": 0.25}
    agrees(stated, 128)


def test_yarn_without_a_factor_takes_the_ratio_of_contexts() -> None:
    """ROP-6"""
    agrees({**YARN, "factor": None}, 64)
