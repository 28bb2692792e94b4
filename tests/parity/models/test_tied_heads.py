"""Tied output heads: by config and by file (F01)."""

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

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

TOKENS = list(range(30))
TOLERANCE = 1e-4


def theirs(folder: Path) -> Tensor:
    with torch.inference_mode():
        return LlamaForCausalLM.from_pretrained(folder)(torch.tensor([TOKENS])).logits[0]


def with_head(folder: Path, scale: float) -> None:
    """Ship a head: the token table times `scale`."""

    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] * scale}

    edit_tensors(folder, change)


def test_tied_without_a_head(tmp_path: Path) -> None:
    """LLA-1"""
    folder = tiny_folder(tmp_path, "llama", tie_word_embeddings=True)
    assert relative_error(logits(loaded(folder), TOKENS), theirs(folder)) <= TOLERANCE


def test_tied_with_the_same_head_shipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """CON-14: a tied lm_head is a known leftover, and no warning lists it."""
    folder = tiny_folder(tmp_path, "llama", tie_word_embeddings=True)
    with_head(folder, 1.0)
    with caplog.at_level(logging.WARNING, "forerun"):
        ours = logits(loaded(folder), TOKENS)
    assert relative_error(ours, theirs(folder)) <= TOLERANCE
    assert not caplog.records


def test_tied_with_another_head_shipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The file is believed, as transformers does, and one warning names the tensor (LLA-1)."""
    folder = tiny_folder(tmp_path, "llama", tie_word_embeddings=True)
    with_head(folder, -0.5)
    with caplog.at_level(logging.WARNING, "forerun"):
        ours = logits(loaded(folder), TOKENS)
    assert relative_error(ours, theirs(folder)) <= TOLERANCE
    (record,) = [record for record in caplog.records if record.name.startswith("forerun")]
    assert "lm_head.weight" in record.getMessage()


def test_untied_without_a_head_is_an_error(tmp_path: Path) -> None:
    """LLA-1: the default is untied, and the missing tensor is named."""
    folder = tiny_folder(tmp_path, "llama", tie_word_embeddings=True)
    for flag in (False, ...):
        edit_config(folder, tie_word_embeddings=flag)
        with pytest.raises(LoadError, match=r"no tensor lm_head\.weight"):
            loaded(folder)


def test_tied_only_in_text_config(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, "llama", tie_word_embeddings=True)
    wanted = theirs(folder)
    fields = read_config(folder)
    edit_config(folder, **dict.fromkeys(fields, ...))
    edit_config(folder, architectures=["LlamaForCausalLM"], text_config=fields)
    assert relative_error(logits(loaded(folder), TOKENS), wanted) <= TOLERANCE


def test_untied_heads_are_their_own_tensor(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, "llama", tie_word_embeddings=False)
    with torch.inference_mode():
        wanted = tiny_model("llama")(torch.tensor([TOKENS])).logits[0]
    assert relative_error(logits(loaded(folder), TOKENS), wanted) <= TOLERANCE
