"""Quantised hybrids on the C++ layers: bits at every width, after snapshots and with drafts."""

import dataclasses
import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fixtures.checkpoints import CPU, chunked_logits, logits
from fixtures.hybrid import CONTEXT, VOCABULARY, loaded_hybrid
from fixtures.quantised import Quantised, quantised_hybrid
from fixtures.scripted_drafter import ScriptedDrafter, drafting_with, oracle
from fixtures.tiny import Family
from fixtures.toy import ListSink
from forerun.contract.batch import Batch
from forerun.contract.model import CacheOptions, TargetModel
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.nn.fused_layers import FusedLayers
from forerun.sampling.options import SamplingOptions

HYBRIDS: tuple[Family, ...] = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
FAMILIES: tuple[Family, ...] = (*HYBRIDS, "qwen3_moe")
TOKENS = [(37 * place + place * place) % VOCABULARY for place in range(75)]
OTHERS = [(11 * place + 5) % VOCABULARY for place in range(75)]
SAMPLINGS = [
    SamplingOptions(temperature=0.0),
    SamplingOptions(temperature=0.0, repeat_penalty=1.3, repeat_last_n=16),
    SamplingOptions(temperature=0.9, seed=7, top_k=20, frequency_penalty=0.3),
]


Load = Callable[..., TargetModel]  # of a family; with a dtype, threads


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Loads a model of each kind once: it keeps nothing between forwards."""

    @functools.cache
    def checkpoint(family: Family) -> Quantised:
        return quantised_hybrid(
            tmp_path_factory.mktemp(family),
            family,
            mtp=family != "qwen3_moe",
            vocab_size=VOCABULARY,
            max_position_embeddings=CONTEXT,
            eos_token_id=None,
            pad_token_id=None,
        )

    @functools.cache
    def load(
        family: Family, dtype: torch.dtype = torch.bfloat16, *, threads: int = 2
    ) -> TargetModel:
        model = checkpoint(family).load(dtype, threads=threads)
        assert isinstance(model._parts.stack, FusedLayers)  # type: ignore[attr-defined]
        return model

    return load


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_of_a_hybrid_give_equal_bits(
    native: Load, family: Family, dtype: torch.dtype
) -> None:
    """WID-1, WID-2, WID-4, WID-5, CON-9, T16: whole without caches; over caches in any chunks."""
    model = native(family, dtype)
    whole = logits(model, TOKENS)
    for chunks in ([75], [1], [5], [16], [17], [3, 1, 40]):
        assert torch.equal(chunked_logits(model, TOKENS, chunks), whole), chunks


@pytest.mark.parametrize("family", FAMILIES)
def test_threads_change_no_bit_of_a_hybrid(native: Load, family: Family) -> None:
    """WID-3"""
    one, three = (native(family, threads=threads) for threads in (1, 3))
    assert torch.equal(logits(one, TOKENS), logits(three, TOKENS))


@pytest.mark.parametrize("family", HYBRIDS)
@torch.inference_mode()
def test_a_refused_draft_leaves_no_bit_behind(native: Load, family: Family) -> None:
    """01 REC-5, WID-4: rounds of every width, of which any number stands, one after the other."""
    model = native(family)
    whole = logits(model, TOKENS)
    caches = [c for c in model.new_caches(CacheOptions(context=100, slack=16)) if c is not None]

    def forward(tokens: list[int], start: int) -> Tensor:
        return model.unembed(model.forward(Batch.of(tokens, start, CPU), caches).hidden)[0]

    forward(TOKENS[:3], 0)
    at = 3
    for width in (2, 5, 16, 3, 9, 2, 16):
        for stands in (1, width // 2 + 1):
            for cache in caches:
                cache.prepare_snapshots(range(at + 1, at + width))
            right = TOKENS[at : at + stands]
            made = forward(right + OTHERS[: width - stands], at)
            assert torch.equal(made[:stands], whole[at : at + stands])
            at += stands
            for cache in caches:
                taken = cache.take_snapshots()
                if not cache.restore(None, at):
                    assert cache.restore(taken[stands - 1], at)
            if at + 17 > len(TOKENS):
                return
    assert torch.equal(forward(TOKENS[at:], at), whole[at:])


def ask(loaded: LoadedModel, options: SamplingOptions, draft: str, count: int) -> ListSink:
    sink, sampling = ListSink(), dataclasses.replace(options, draft=draft)
    with torch.inference_mode():
        generate(loaded, Job(tuple(TOKENS[:9]), frozenset(), sampling, count, sink))
    assert sink.error is None
    return sink


@pytest.mark.parametrize("options", SAMPLINGS, ids=["greedy", "penalised", "seeded"])
@pytest.mark.parametrize("family", HYBRIDS)
def test_texts_with_drafts_are_those_without(
    native: Load, family: Family, options: SamplingOptions
) -> None:
    """WID-7, GEN-4, GEN-6: over the quantised model, at every depth, by its own head and by drafts
    that are right, wrong, or wrong somewhere."""
    count = 120
    model = native(family)
    plain = ask(loaded_hybrid(model), options, "off", count).tokens
    right = oracle([*TOKENS[:9], *plain, *TOKENS])

    def sometimes(known: list[int], most: int) -> list[int]:
        wrong = len(known) % 3
        drafts = right(known, most)
        return [(t + 1) % VOCABULARY if i == wrong else t for i, t in enumerate(drafts)]

    own = loaded_hybrid(model)
    assert ask(own, options, "model", count).tokens == plain
    for depth in range(1, 9):
        for script in (right, sometimes):
            loaded = drafting_with(loaded_hybrid(model), ScriptedDrafter(script), depth=depth)
            sink = ask(loaded, options, "lookup", count)
            assert sink.tokens == plain, depth
            assert sink.figures.drafting.rounds > 0
