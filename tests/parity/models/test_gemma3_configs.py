"""Gemma 3 configs as they were published: old and new fields, nested text models (GM3)."""

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Gemma3TextConfig

from fixtures.checkpoints import (
    edit_config,
    edit_tensors,
    loaded,
    logits,
    read_config,
    relative_error,
)
from fixtures.tiny import tiny_folder, tiny_model
from forerun.base.errors import LoadError
from forerun.models.config import ConfigReader
from forerun.models.gemma3 import DEFAULTS, layer_kinds

TOLERANCE = 1e-4
TOKENS = list(range(40))


def theirs(**config: object) -> Tensor:
    with torch.inference_mode():
        return tiny_model("gemma3", **config)(torch.tensor([TOKENS])).logits[0]


def test_older_configs_give_the_kinds_by_a_pattern(tmp_path: Path) -> None:
    """GM3-2: every third layer is full where sliding_window_pattern is 3."""
    config = {"num_hidden_layers": 4, "sliding_window_pattern": 3, "layer_types": None}
    folder = tiny_folder(tmp_path, "gemma3", **config)
    edit_config(folder, layer_types=..., _sliding_window_pattern=..., sliding_window_pattern=3)
    assert relative_error(logits(loaded(folder), TOKENS), theirs(**config)) <= TOLERANCE


def test_kinds_default_to_five_sliding_and_one_full() -> None:
    """GM3-2"""
    wanted = Gemma3TextConfig(num_hidden_layers=13).layer_types
    assert list(layer_kinds(ConfigReader({}), 13)) == wanted


def test_defaults_are_those_of_the_reference() -> None:
    """GM3-1: a published text_config may name only what differs."""
    wanted = Gemma3TextConfig()
    for name, value in DEFAULTS.items():
        if name != "rope_theta":
            assert getattr(wanted, name) == value, name


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("model.", "lm_head"),
        ("language_model.model.", "language_model.lm_head"),
        ("model.language_model.", "lm_head"),
    ],
)
@pytest.mark.parametrize("tied", [True, False])
def test_text_models_inside_a_vision_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, prefix: str, head: str, tied: bool
) -> None:
    """GM3-1, GM3-8, CON-6, CON-10: text works, and the tower's tensors are left unread."""
    wanted = theirs(tie_word_embeddings=tied)
    folder = tiny_folder(tmp_path, "gemma3", tie_word_embeddings=tied)
    fields = read_config(folder)
    edit_config(folder, **dict.fromkeys(fields, ...))
    edit_config(
        folder,
        architectures=["Gemma3ForConditionalGeneration"],
        text_config=fields,
        vision_config={"hidden_size": 8},
    )

    def nested(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        outer = "model." if prefix == "model.language_model." else ""
        renamed = {
            (head + name.removeprefix("lm_head"))
            if name.startswith("lm_head")
            else prefix + name.removeprefix("model."): tensor
            for name, tensor in tensors.items()
        }
        tower = f"{outer}vision_tower.vision_model.embeddings.patch_embedding.weight"
        projector = f"{outer}multi_modal_projector.mm_input_projection_weight"
        return renamed | {tower: torch.ones(2, 2), projector: torch.ones(2)}

    edit_tensors(folder, nested)
    with caplog.at_level(logging.WARNING, "forerun"):
        ours = logits(loaded(folder), TOKENS)
    assert relative_error(ours, wanted) <= TOLERANCE
    assert not caplog.records


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attn_logit_softcapping", 50.0),
        ("use_bidirectional_attention", True),
        ("hidden_activation", "gelu_new"),
        ("layer_types", ["full_attention", "chunked_attention"] * 2),
        ("layer_types", ["full_attention"]),
    ],
)
def test_fields_that_would_change_the_numbers_are_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    """GM3-7, CON-14"""
    folder = tiny_folder(tmp_path, "gemma3")
    edit_config(folder, **{field: value})
    with pytest.raises(LoadError, match=field):
        loaded(folder)


def test_softcap_bounds_the_logits(tmp_path: Path) -> None:
    """GM3-7"""
    config: Mapping[str, object] = {"final_logit_softcapping": 2.0}
    model = loaded(tiny_folder(tmp_path, "gemma3", **config))
    ours = logits(model, TOKENS)
    assert relative_error(ours, theirs(**config)) <= TOLERANCE
    assert float(ours.abs().max()) <= 2.0
