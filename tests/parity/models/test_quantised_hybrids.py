"""Hybrids and mixtures over quantised weights against the values that these stand for (QWN)."""

import logging
from pathlib import Path

import pytest
import torch

from fixtures.checkpoints import CPU, chunked_logits, logits, relative_error
from fixtures.quantised import HYBRID_KEPT, quantised_hybrid
from fixtures.tiny import Family
from forerun.contract.batch import Batch
from forerun.contract.model import CacheOptions, TargetModel
from forerun.models.decoder import Blocks, DecoderModel
from forerun.nn.fused_layers import FusedLayers
from forerun.quant.formats import QuantFormat

HYBRIDS: tuple[Family, ...] = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
TOKENS = [(37 * place + place * place) % 256 for place in range(75)]
EXACT = 1e-4  # the same values, summed in another order
ROUNDING = 2e-3  # of the logits: all that sixteen bits of activations do to a tiny model


@torch.inference_mode()
def head_states(model: TargetModel) -> torch.Tensor:
    """[n, hidden] of the head over a prompt's pairs and thoughts drawn anew."""
    head = model.self_draft()
    assert head is not None
    thoughts = torch.randn(1, 20, 64, generator=torch.Generator().manual_seed(1))
    batch = Batch.of(TOKENS[:20], 0, CPU, conditioning=thoughts)
    return head.forward(batch, (), head.new_caches(CacheOptions(context=32))).hidden[0]


@pytest.mark.parametrize("family", [*HYBRIDS, "qwen3_moe"])
def test_a_quantised_hybrid_computes_what_its_values_say(tmp_path: Path, family: Family) -> None:
    """QWN-6, QWN-7, QWN-12, QWN-13, LIN-5, LIN-6, LIN-8: rows of queries and gates are sorted, and
    grouped projections put in order, without touching a code; the head too."""
    mtp = family != "qwen3_moe"
    checkpoint = quantised_hybrid(tmp_path, family, mtp=mtp)
    ours, dense = checkpoint.load(native=False), checkpoint.dense()
    wanted = logits(dense, TOKENS)
    assert relative_error(logits(ours, TOKENS), wanted) <= EXACT
    assert relative_error(chunked_logits(ours, TOKENS, (9, 1, 40)), wanted) <= EXACT
    if mtp:
        assert relative_error(head_states(ours), head_states(dense)) <= EXACT
        draft = ours.self_draft()
        assert draft is not None
        assert 0 < draft.facts.weight_bytes < ours.facts.weight_bytes


@pytest.mark.parametrize("family", [*HYBRIDS, "qwen3_moe"])
def test_kernels_compute_what_a_quantised_hybrid_does(tmp_path: Path, family: Family) -> None:
    """KER-1: whole layers, or linears of separate operations."""
    mtp = family != "qwen3_moe"
    checkpoint = quantised_hybrid(tmp_path, family, mtp=mtp)
    ours, dense = checkpoint.load(), checkpoint.dense()
    assert ours.facts.own_threads
    wanted = logits(dense, TOKENS)
    assert relative_error(logits(ours, TOKENS), wanted) <= ROUNDING
    assert relative_error(chunked_logits(ours, TOKENS, (9, 1, 40)), wanted) <= ROUNDING
    if mtp:
        assert relative_error(head_states(ours), head_states(dense)) <= ROUNDING


@pytest.mark.parametrize("form", ["nvfp4", "mxfp4", "mxfp8"])
def test_block_scaled_hybrids(tmp_path: Path, form: str) -> None:
    """LIN-8: formats without kernels of their own go by their values."""
    group = 16 if form == "nvfp4" else 32
    checkpoint = quantised_hybrid(tmp_path, "qwen3_5_moe", form=QuantFormat(form, group))
    ours, dense = checkpoint.load(native=False), checkpoint.dense()
    assert relative_error(logits(ours, TOKENS), logits(dense, TOKENS)) <= EXACT
    assert relative_error(head_states(ours), head_states(dense)) <= EXACT


@pytest.mark.parametrize("kept", ["in_proj_z.", "in_proj_qkv.", "in_proj_b.", "q_proj", "up_proj"])
def test_parts_of_different_formats_stay_side_by_side(
    tmp_path: Path, kept: str, caplog: pytest.LogCaptureFixture
) -> None:
    """QWN-7, LIN-6: one of a pair dense and the other one not; what decides on a state is dense
    either way."""
    others = [part for part in HYBRID_KEPT if part not in ("in_proj_a.", "in_proj_b.")]
    checkpoint = quantised_hybrid(tmp_path, "qwen3_5", kept=[kept, *others])
    with caplog.at_level(logging.WARNING, "forerun"):
        ours = checkpoint.load(native=False)
    assert relative_error(logits(ours, TOKENS), logits(checkpoint.dense(), TOKENS)) <= EXACT
    assert not [record for record in caplog.records if record.name.startswith("forerun")]


def test_routers_and_gates_may_be_quantised(tmp_path: Path) -> None:
    """QWN-12, LIN-1: as converters for MLX write them; they are served by their values."""
    checkpoint = quantised_hybrid(tmp_path, "qwen3_5_moe", kept=("conv1d",))
    ours = checkpoint.load(native=False)
    assert relative_error(logits(ours, TOKENS), logits(checkpoint.dense(), TOKENS)) <= EXACT


@pytest.mark.parametrize("dense", ["", "model.layers.1.self_attn.o_proj"])
@pytest.mark.parametrize("family", HYBRIDS)
def test_a_dense_head_beside_kernels_is_quantised_for_them(
    tmp_path: Path, family: Family, dense: str
) -> None:
    """QWN-13: it only proposes, and its steps are as fast as the model's, whose layers may be
    separate operations, most of them on threads of the kernels. What it makes is what its values
    said, but for the rounding to four bits."""
    kept = (*HYBRID_KEPT, "mtp.", *([dense] if dense else []))
    checkpoint = quantised_hybrid(tmp_path, family, kept=kept)
    ours, reference = checkpoint.load(), checkpoint.load(native=False)
    assert ours.facts.own_threads
    assert isinstance(ours, DecoderModel)
    assert isinstance(ours._parts.stack, Blocks if dense else FusedLayers)
    heads = [model.self_draft() for model in (ours, reference)]
    sizes = [head.facts.weight_bytes for head in heads if head is not None]
    assert 0 < 2 * sizes[0] < sizes[1]
    likeness = torch.cosine_similarity(head_states(ours), head_states(reference), -1)
    assert float(likeness.mean()) > 0.95
