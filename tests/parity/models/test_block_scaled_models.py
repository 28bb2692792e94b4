"""Whole models of block-scaled weights: the logits of their values, in C++ for mxfp4 alone."""

import logging
from pathlib import Path

import pytest
import torch

from fixtures.checkpoints import chunked_logits, logits, relative_error
from fixtures.quantised import quantised
from forerun.kernels import select
from forerun.quant.formats import BLOCK_SCALED_GROUP, QuantFormat

FORMS = [QuantFormat(kind, group) for kind, group in BLOCK_SCALED_GROUP.items()]
MXFP4 = QuantFormat("mxfp4", 32)
TOKENS = [(37 * place + place * place) % 256 for place in range(40)]
TOLERANCE = 1e-5  # both sides are float32 sums over the same values
ROUNDING = 1e-3  # all that activations of sixteen bits do to a tiny model


@pytest.mark.parametrize("global_scale", [None, 0.7])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_model_computes_with_the_values_of_its_weights(
    tmp_path: Path, form: QuantFormat, tied: bool, global_scale: float | None
) -> None:
    """LIN-1, LIN-3 to LIN-6, LIN-8: dequantised, fused by rows, with global scales or without."""
    checkpoint = quantised(
        tmp_path, "qwen3", form=form, tie_word_embeddings=tied, global_scale=global_scale
    )
    model = checkpoint.load(native=False)
    dense = checkpoint.dense()
    assert relative_error(logits(model, TOKENS), logits(dense, TOKENS)) <= TOLERANCE
    assert model.facts.weight_bytes < dense.facts.weight_bytes / 3


@pytest.mark.parametrize("tied", [False, True])
def test_mxfp4_runs_in_whole_layers(tmp_path: Path, tied: bool) -> None:
    """KER-1, LIN-3: by its affine form, and with the same bits in chunks of any size (WID-1)."""
    checkpoint = quantised(tmp_path, "llama", form=MXFP4, tie_word_embeddings=tied)
    model = checkpoint.load()
    assert model.facts.own_threads
    ours = logits(model, TOKENS)
    assert relative_error(ours, logits(checkpoint.dense(), TOKENS)) <= ROUNDING
    for chunks in ([1], [7], [16]):
        assert torch.equal(chunked_logits(model, TOKENS, chunks), ours)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_what_does_not_run_in_whole_layers_is_right_and_said(
    tmp_path: Path, form: QuantFormat, caplog: pytest.LogCaptureFixture
) -> None:
    """KER-1, LIN-4: formats without kernels, and global scales that no group can take in."""
    select._log_once.cache_clear()
    global_scale = 0.7 if form == MXFP4 else None
    checkpoint = quantised(tmp_path, "llama", form=form, global_scale=global_scale)
    with caplog.at_level(logging.INFO, logger="forerun"):
        model = checkpoint.load()
    assert relative_error(logits(model, TOKENS), logits(checkpoint.dense(), TOKENS)) <= ROUNDING
    assert any("layers run as separate operations" in text for text in caplog.messages)
    slow = any(f"{form.name} linear dequantises its weight" in text for text in caplog.messages)
    assert slow == (form != MXFP4)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_sizes_that_are_no_whole_groups_stay_dense(tmp_path: Path, form: QuantFormat) -> None:
    """F05: beside quantised ones, in one model."""
    checkpoint = quantised(tmp_path, "llama", form=form, kept=["down_proj"], intermediate_size=72)
    error = relative_error(logits(checkpoint.load(), TOKENS), logits(checkpoint.dense(), TOKENS))
    assert error <= ROUNDING
