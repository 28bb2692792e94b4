"""The hybrid test model against itself: one forward without caches is what all else must equal.

fp32; a stale row or state moves the logits by far more than the tolerance of 1e-5 of their scale.
"""

import dataclasses

import pytest
import torch

from fixtures.checkpoints import chunked_logits, logits, relative_error
from fixtures.hybrid import KINDS, SLACK, WINDOW, hybrid_model
from forerun.contract.batch import Batch
from forerun.contract.model import CacheOptions

LAYOUTS = [
    ("recurrent",),
    ("full",),
    ("sliding",),
    KINDS,
    ("recurrent", "full", "recurrent", "full"),
    ("sliding", "stateless", "recurrent", "full"),
]
TOKENS = [(index * index * 7 + index * 3) % 64 for index in range(45)]
OTHERS = [(index * 11 + 5) % 64 for index in range(45)]
OPTIONS = CacheOptions(context=100, slack=SLACK)
EACH_LAYOUT = pytest.mark.parametrize("kinds", LAYOUTS, ids="-".join)


def advance(model, caches, tokens):
    """[n, vocab] logits of the tokens that come next."""
    start = next((cache.offset for cache in caches if cache is not None), 0)
    batch = Batch.of(tokens, start, model.facts.device)
    return model.unembed(model.forward(batch, caches).hidden)[0]


def near(ours, theirs):
    return relative_error(ours, theirs) < 1e-5


@EACH_LAYOUT
@pytest.mark.parametrize("chunks", [[45], [1], [7], [WINDOW + 1, SLACK + 1, 3]], ids=str)
def test_any_chunks_give_what_one_forward_without_caches_gives(kinds, chunks):
    """CON-9; contract/model law 1."""
    model = hybrid_model(kinds)
    assert near(chunked_logits(model, TOKENS, chunks, slack=SLACK), logits(model, TOKENS))


@EACH_LAYOUT
@torch.inference_mode()
def test_a_snapshot_at_any_boundary_restores_what_a_fresh_run_holds(kinds):
    """01 CTR-6, R10, R11: after others have overwritten it, and after the caches were freed."""
    model, whole = hybrid_model(kinds), logits(hybrid_model(kinds), TOKENS)
    for boundary in range(1, len(TOKENS) - 1):
        caches = model.new_caches(OPTIONS)
        live = [cache for cache in caches if cache is not None]
        advance(model, caches, TOKENS[:boundary])
        snapshots = [cache.snapshot(0) for cache in live]
        advance(model, caches, OTHERS[:20])
        for freed in (False, True):
            for cache, snapshot in zip(live, snapshots, strict=True):
                if freed:
                    cache.free()
                assert cache.restore(snapshot, boundary)
            assert near(advance(model, caches, TOKENS[boundary:]), whole[boundary:])


@EACH_LAYOUT
@torch.inference_mode()
def test_captures_on_the_way_through_a_chunk_restore_each_boundary(kinds):
    """01 PND-3, PND-5, 02 SCH-6: prepared ahead, taken out of one forward that is not cut there."""
    model, whole = hybrid_model(kinds), logits(hybrid_model(kinds), TOKENS)
    boundaries = [1, 3, WINDOW, WINDOW + 1, 20, 38, 44]
    caches = model.new_caches(OPTIONS)
    live = [cache for cache in caches if cache is not None]
    for cache in live:
        cache.prepare_snapshots(boundaries)
    advance(model, caches, TOKENS[:40])
    advance(model, caches, TOKENS[40:])
    rows = list(zip(*(cache.take_snapshots() for cache in live), strict=True))
    for count, boundary in enumerate(boundaries, start=1):
        for place, cache in enumerate(live):
            cache.free()
            for row, end in zip(rows[:count], boundaries, strict=False):
                cache.restore(row[place], end)
            assert cache.offset == boundary
        assert near(advance(model, caches, TOKENS[boundary:]), whole[boundary:])


@EACH_LAYOUT
@torch.inference_mode()
def test_padding_changes_nothing(kinds):
    """01 MSK-9, CNV-5, REC-4: neither results nor caches, however many columns it takes."""
    model, whole = hybrid_model(kinds), logits(hybrid_model(kinds), TOKENS)
    for real, padded in ((1, 3), (5, 6), (30, 40)):
        caches = model.new_caches(OPTIONS)
        batch = Batch.of([*TOKENS[:real], *OTHERS[: padded - real]], 0, model.facts.device)
        batch = dataclasses.replace(
            batch, lengths=(real,), valid_lengths=torch.full((1,), real, dtype=torch.int64)
        )
        for held in (None, caches):
            padded_logits = model.unembed(model.forward(batch, held).hidden)[0, :real]
            assert near(padded_logits, whole[:real])
        assert {cache.offset for cache in caches if cache is not None} == {real}
        assert near(advance(model, caches, TOKENS[real:]), whole[real:])


@torch.inference_mode()
def test_the_head_in_chunks_is_the_head_in_one_forward():
    """The draft's side of contract/model law 1."""
    model = hybrid_model()
    draft, rows = model.self_draft(), model.forward(Batch.of(TOKENS, 0, model.facts.device), None)
    seen = []
    for size in (44, 1, 7):
        caches, parts = draft.new_caches(OPTIONS), []
        for start in range(0, 44, size):
            end = min(start + size, 44)
            batch = Batch.of(
                TOKENS[start + 1 : end + 1],
                start,
                model.facts.device,
                conditioning=rows.conditioning[:, start:end],
            )
            parts.append(draft.unembed(draft.forward(batch, [], caches).hidden)[0])
        seen.append(torch.cat(parts))
    assert near(seen[1], seen[0])
    assert near(seen[2], seen[0])
