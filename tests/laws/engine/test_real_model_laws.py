"""The engine's laws over tiny real models of every family, sliding windows included."""

import threading
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fixtures.checkpoints import loaded as load_tiny
from fixtures.tiny import TURN_END, tiny_folder
from fixtures.toy import GREEDY, ListSink
from forerun.contract.model import CacheOptions
from forerun.engine.embed import embed
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.engine.memory import anonymous_bytes, cache_bytes
from forerun.prefix.captures import CaptureRule
from forerun.prefix.prefix_cache import PrefixCache
from forerun.sampling.options import SamplingOptions
from forerun.sampling.sampler import Sampler

FAMILIES = ["llama", "qwen3", "gemma3"]
PROMPTS = st.lists(st.integers(97, 100), min_size=1, max_size=30)
WINDOW = 8  # of gemma3
SHARED = [1, 4, WINDOW - 1, WINDOW + 1, 20, 1000]
SCALE = 10  # of the tiny models' logits
WITH_LOGPROBS = SamplingOptions(temperature=0.0, logprobs=True, top_logprobs=5)


@cache
def target(family):
    with TemporaryDirectory() as folder:
        return load_tiny(tiny_folder(Path(folder), family, max_position_embeddings=4096))


def engine(family, *, chunk=256, look_ahead=0, context=200, budget_bytes=2**30, interval=8192):
    model = target(family)
    caches = model.new_caches(CacheOptions(context, slack=16))
    device = model.facts.device
    return LoadedModel(
        model=model,
        caches=caches,
        prefix=PrefixCache(
            caches, budget_bytes=budget_bytes, captures=CaptureRule(interval=interval)
        ),
        sampler=Sampler(vocab_size=model.facts.vocab_size, context_length=context, device=device),
        context=context,
        chunk=chunk,
        look_ahead=look_ahead,
    )


@torch.inference_mode()
def ask(loaded, prompt, budget=6, *, sampling=GREEDY, sink=None):
    sink = sink or ListSink()
    generate(
        loaded,
        Job(tuple(prompt), frozenset({TURN_END}), sampling, budget, sink, sink.cancelled),
    )
    return sink


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=10)
@given(prompt=PROMPTS, chunk=st.integers(1, 12), look_ahead=st.sampled_from([0, 1]))
def test_chunked_prefill_is_one_forward(family, prompt, chunk, look_ahead):
    """PRE-1, DEC-7."""
    chunked = ask(engine(family, chunk=chunk, look_ahead=look_ahead), prompt)
    assert chunked.tokens == ask(engine(family), prompt).tokens


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25)
@given(
    requests=st.lists(
        st.tuples(
            st.integers(0, 3),  # the earlier text that it goes on from,
            st.sampled_from(SHARED),  # as far as here
            PROMPTS,
            st.none() | st.integers(0, 12),
        ),
        min_size=2,
        max_size=5,
    ),
    chunk=st.sampled_from([1, 3, 7, 12, 40]),
    budget_bytes=st.sampled_from([0, 30_000, 2**30]),
    interval=st.sampled_from([4, 8192]),
)
def test_a_warm_answer_is_a_cold_one_whatever_came_before(
    family, requests, chunk, budget_bytes, interval
):
    """REQ-3, 02 BEG, user-reported fault B07: ids and log-probabilities, however much is shared
    with earlier texts, and whether those were cancelled or evicted."""
    warm = engine(family, chunk=chunk, budget_bytes=budget_bytes, interval=interval)
    texts = [[]]
    for base, shared, tail, cancel_at in requests:
        prompt = [*texts[base % len(texts)][:shared], *tail][:90]
        cold = ask(engine(family), prompt, sampling=WITH_LOGPROBS)
        assume(all(entry.top[0][1] - entry.top[1][1] > 1e-4 for entry in cold.logprobs))  # WID-6
        sink = ask(warm, prompt, sampling=WITH_LOGPROBS, sink=ListSink(cancel_at=cancel_at))
        assert sink.tokens == cold.tokens[: len(sink.tokens)]
        assert sink.error is not None or sink.tokens == cold.tokens
        for ours, theirs in zip(sink.logprobs, cold.logprobs, strict=False):
            assert values(ours) == pytest.approx(values(theirs), abs=1e-5 * SCALE)
        texts.append([*prompt, *sink.tokens])


def values(entry):
    return [logprob for _, logprob in entry.top]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_text_warm_and_cold(family):
    """04 SED-2."""
    options = SamplingOptions(temperature=1.0, seed=11, repeat_penalty=1.1)
    loaded = engine(family, chunk=5)
    texts = {tuple(ask(loaded, [97] * 20, 12, sampling=options).tokens) for _ in range(3)}
    texts.add(tuple(ask(engine(family, look_ahead=1), [97] * 20, 12, sampling=options).tokens))
    assert len(texts) == 1


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_an_embedding_is_the_mean_of_the_hidden_states(family):
    """08 API-13: of length 1, cut before it is scaled, and the caches stay as they are."""
    loaded = engine(family)
    ask(loaded, [97, 98, 99], 2)
    before = loaded.caches[0].offset
    vector = embed(loaded, [97, 98, 99, 100], None, threading.Event())
    cut = embed(loaded, [97, 98, 99, 100], 4, threading.Event())
    assert sum(value * value for value in vector) == pytest.approx(1, abs=1e-5)
    scale = sum(value * value for value in vector[:4]) ** 0.5
    assert cut == pytest.approx([value / scale for value in vector[:4]], abs=1e-5)
    assert loaded.caches[0].offset == before


def test_a_long_generation_grows_by_what_its_caches_hold():
    """03 MEM-1 (plain): the footprint is flat but for the rows written."""
    loaded = engine("llama", context=2000)
    endless = SamplingOptions(temperature=0.0, logit_bias=((TURN_END, -100.0),))
    ask(loaded, [97] * 10, 300, sampling=endless)
    memory, held = anonymous_bytes(), cache_bytes(loaded)
    sink = ask(loaded, [97] * 10, 1500, sampling=endless)
    assert sink.figures.generated_tokens == 1500
    written = cache_bytes(loaded) - held
    assert written > 0
    assert anonymous_bytes() - memory < written + 2 * 1024**2
