"""Rotary parameters wherever a config may state them, and every kind, against transformers (F09).

All of a prompt of 2010 tokens is run and its end compared, so that a wrong base cannot hide.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fixtures.checkpoints import edit_config, loaded, logits, read_config, relative_error
from fixtures.tiny import Family, tiny_folder, tiny_model
from forerun.base.errors import LoadError

TOLERANCE = 1e-4
LONG = torch.randint(0, 264, (2010,), generator=torch.Generator().manual_seed(7)).tolist()
THETA = 700.0


def long_folder(path: Path, family: Family, **config: object) -> Path:
    return tiny_folder(path, family, max_position_embeddings=4096, **config)


def theirs(family: Family, tokens: list[int], **config: object) -> Tensor:
    model = tiny_model(family, **{"max_position_embeddings": 4096, **config})
    with torch.inference_mode():
        return model(torch.tensor([tokens]), logits_to_keep=10).logits[0]


@pytest.fixture(scope="module")
def wanted() -> Tensor:
    """A llama with rope_theta 700."""
    return theirs("llama", LONG, rope_parameters={"rope_type": "default", "rope_theta": THETA})


NESTED = {"rope_type": "default", "rope_theta": THETA}
PLACES: list[Mapping[str, object]] = [
    {"rope_parameters": ..., "rope_theta": THETA},
    {"rope_parameters": NESTED},
    {"rope_parameters": {"rope_type": "default"}, "rope_theta": THETA},
    {"rope_parameters": NESTED, "rope_theta": 10000.0},  # the nested one wins
    {"rope_parameters": NESTED, "partial_rotary_factor": 1.0},
    # transformers turns the whole head of a llama all the same
    {"rope_parameters": {**NESTED, "partial_rotary_factor": 0.5}},
    {"rope_parameters": NESTED, "partial_rotary_factor": 0.5},
]


@pytest.mark.parametrize("place", PLACES)
def test_the_base_is_found_in_every_place(
    tmp_path: Path, wanted: Tensor, place: Mapping[str, object]
) -> None:
    """ROP-1"""
    folder = long_folder(tmp_path, "llama")
    edit_config(folder, **place)
    assert relative_error(logits(loaded(folder), LONG)[-10:], wanted) <= TOLERANCE


def test_the_base_is_found_in_text_config(tmp_path: Path, wanted: Tensor) -> None:
    """ROP-1"""
    folder = long_folder(tmp_path, "llama")
    edit_config(folder, rope_parameters=..., rope_theta=THETA)
    fields = read_config(folder)
    edit_config(folder, **dict.fromkeys(fields, ...))
    edit_config(folder, architectures=["LlamaForCausalLM"], text_config=fields, rope_theta=5.0)
    assert relative_error(logits(loaded(folder), LONG)[-10:], wanted) <= TOLERANCE


KINDS: list[Mapping[str, object]] = [
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.2,
        "mscale_all_dim": 0.7,
        "beta_fast": 20.0,
        "truncate": False,
    },
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.3,
    },
]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_past_the_original_length(
    tmp_path: Path, family: Family, kind: Mapping[str, object]
) -> None:
    """T13, ROP-2..7: logits at positions far past the 64 of the original model."""
    parameters = {**kind, "rope_theta": THETA}
    tokens = LONG[:300]
    wanted = theirs(family, tokens, rope_parameters=dict(parameters))
    folder = long_folder(tmp_path, family)
    edit_config(folder, rope_parameters=parameters)
    assert relative_error(logits(loaded(folder), tokens)[-10:], wanted) <= TOLERANCE


def test_the_older_spelling_gives_the_same(tmp_path: Path) -> None:
    """ROP-1: rope_scaling with `type`, and rope_theta at the top."""
    parameters = {"rope_type": "linear", "factor": 4.0, "rope_theta": THETA}
    tokens = LONG[:300]
    wanted = theirs("llama", tokens, rope_parameters=parameters)
    folder = long_folder(tmp_path, "llama")
    older = {"type": "linear", "factor": 4.0}
    edit_config(folder, rope_parameters=..., rope_scaling=older, rope_theta=THETA)
    assert relative_error(logits(loaded(folder), tokens)[-10:], wanted) <= TOLERANCE


def test_dynamic_scaling_limits_the_context(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ROP-4: equal to transformers up to the original length, and no context beyond it, which the
    load says."""
    parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": THETA}
    short = {"max_position_embeddings": 200, "rope_parameters": parameters}
    folder = tiny_folder(tmp_path, "llama", **short)
    edit_config(folder, max_position_embeddings=200)
    wanted = theirs("llama", LONG[:200], **short)
    model = loaded(folder)
    assert model.facts.max_context == 200
    assert "the context is limited to 200 tokens" in caplog.text
    assert relative_error(logits(model, LONG[:200])[-10:], wanted) <= TOLERANCE


GEMMA_PLACES: list[Mapping[str, object]] = [
    {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": THETA},
            "sliding_attention": {"rope_type": "default", "rope_theta": 90.0},
        }
    },
    {  # the nested ones win
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": THETA},
            "sliding_attention": {"rope_type": "default", "rope_theta": 90.0},
        },
        "rope_theta": 3.0,
        "rope_local_base_freq": 4.0,
    },
    {  # one kind stated inside, the other in the older place
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": THETA},
            "sliding_attention": None,
        },
        "rope_local_base_freq": 90.0,
    },
    {  # older: sliding layers are never scaled
        "rope_parameters": ...,
        "rope_theta": THETA,
        "rope_local_base_freq": 90.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
]


@pytest.mark.parametrize("place", GEMMA_PLACES)
def test_gemma_has_a_base_for_each_layer_kind(tmp_path: Path, place: Mapping[str, object]) -> None:
    """GM3-6, ROP-1, ROP-3"""
    parameters = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": THETA},
        "sliding_attention": {"rope_type": "default", "rope_theta": 90.0},
    }
    wanted = theirs("gemma3", LONG, rope_parameters=parameters)
    folder = long_folder(tmp_path, "gemma3")
    edit_config(folder, **place)
    assert relative_error(logits(loaded(folder), LONG)[-10:], wanted) <= TOLERANCE


def test_gemma_bases_have_defaults(tmp_path: Path) -> None:
    """GM3-6: 1e6 for full layers and 1e4 for sliding ones."""
    wanted = theirs("gemma3", LONG)
    folder = long_folder(tmp_path, "gemma3")
    edit_config(folder, rope_parameters=...)
    assert relative_error(logits(loaded(folder), LONG)[-10:], wanted) <= TOLERANCE


def test_gemma_parameters_must_say_for_which_kind(tmp_path: Path) -> None:
    """CON-14: transformers would pass over a base that stands there without a kind."""
    folder = tiny_folder(tmp_path, "gemma3")
    edit_config(folder, rope_parameters={"rope_type": "default", "rope_theta": 5.0})
    with pytest.raises(LoadError, match="must hold full_attention and sliding_attention"):
        loaded(folder)


def test_unknown_kinds_are_refused(tmp_path: Path) -> None:
    """ROP-1, CON-14"""
    folder = tiny_folder(tmp_path, "llama")
    edit_config(folder, rope_parameters={"rope_type": "spiral", "rope_theta": 1e4})
    with pytest.raises(LoadError, match="spiral"):
        loaded(folder)


def test_a_partly_turned_head_of_another_kind_is_refused(tmp_path: Path) -> None:
    """CON-14: transformers fails too, so there is nothing to agree with."""
    folder = tiny_folder(tmp_path, "llama")
    parameters = {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}
    edit_config(folder, rope_parameters=parameters)
    with pytest.raises(LoadError, match="partial_rotary_factor"):
        loaded(folder)
