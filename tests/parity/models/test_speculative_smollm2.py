"""Drafts change neither text nor caches of the real quantised SmolLM2, bit for bit (03 GEN-6, T12).

Its native kernels give a row the same bits at any width of a round (06 WID). Plain decoding is the
reference; the drafters are lookup, as its controller has it, and one that knows what plain decoding
said and is wrong now and then, at every depth.
"""

import dataclasses
import itertools

import pytest
import torch
from tokenizers import Tokenizer

from fixtures.scripted_drafter import ScriptedDrafter, drafting_with
from fixtures.smollm2 import models_folder, smollm2
from fixtures.toy import ListSink
from forerun.cache.kv import KVCache
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.runner.compose import load_engine
from forerun.runner.request import LoadRequest
from forerun.sampling.options import SamplingOptions
from forerun.speculation.depth import LIMIT

pytestmark = pytest.mark.model

SUBJECTS = (
    *("the sea", "a sorting function in Python", "bread", "the number 7", "a letter to a friend"),
    *("rain", "a table of squares", "a JSON file of three books", "the moon", "a shell script"),
)
TASKS = (
    "Explain {} to a child.",
    "Write a list of twenty facts about {}.",
    "Write about {}, then write the same text again.",
    "Write a poem about {} in which every line begins with the same word.",
    "Give three versions of {}, one after the other.",
)
QUESTIONS = [task.format(subject) for subject, task in itertools.product(SUBJECTS, TASKS)]
REQUESTS = {
    "greedy": SamplingOptions(temperature=0.0),
    "seeded": SamplingOptions(temperature=0.7, seed=11),
    "hot": SamplingOptions(temperature=1.3, top_k=0, seed=5),
    "penalised": SamplingOptions(temperature=0.6, repeat_penalty=1.1, seed=3),
}


@pytest.fixture(scope="module")
def engine() -> LoadedModel:
    stored = smollm2()
    threads = torch.get_num_threads()
    request = LoadRequest("smollm2:135m", models_folder(), num_ctx=1024, threads=2, cache_bytes=0)
    try:
        with torch.inference_mode():
            loaded = load_engine(stored, request, lambda *_: None)
    finally:
        torch.set_num_threads(threads)
    assert loaded.model.facts.own_threads, "the native kernels do not serve"
    return loaded


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    stored = smollm2()
    layer = stored.json_layer("tokenizer.json")
    assert layer is not None
    return Tokenizer.from_buffer(stored.read(layer))


def prompt_of(tokenizer, question):
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return tuple(tokenizer.encode(text).ids)


def answered(loaded, prompt, options, budget):
    """The whole answer, stop tokens and all, what its drafter did, and what the caches hold."""
    sink = ListSink()
    with torch.inference_mode():
        generate(loaded, Job(prompt, frozenset(), options, budget, sink))
        held = []
        for cache in loaded.caches:
            assert isinstance(cache, KVCache)
            history = cache.view()
            held += [history.keys.clone(), history.values.clone()]
    return sink.tokens, sink.figures, held


def fallible(sequence, period):
    """Right but for every `period`-th position of the text."""

    def script(known, most):
        places = range(len(known), min(len(known) + most, len(sequence)))
        return [sequence[p] + (p % period == 0 and sequence[p] < 49_000) for p in places]

    return script


def assert_exact(loaded, prompt, options, budget, number):
    plain, _, held = answered(loaded, prompt, dataclasses.replace(options, draft="off"), budget)
    known = ScriptedDrafter(fallible([*prompt, *plain], 2 + number % 9))
    drafters = {
        "lookup": loaded,
        "known": drafting_with(loaded, known, depth=1 + number % LIMIT),
    }
    drafted = 0
    for name, drafting in drafters.items():
        tokens, figures, ours = answered(drafting, prompt, options, budget)
        assert tokens == plain, (name, number)
        assert all(map(torch.equal, ours, held)), (name, number)
        drafted += figures.drafted_tokens
    return drafted


@pytest.mark.parametrize("request_kind", REQUESTS)
def test_a_short_answer_is_that_of_plain_decoding(engine, tokenizer, request_kind):
    """GEN-4, GEN-5: at two depths of rounds."""
    for number in (2, 13):
        prompt = prompt_of(tokenizer, QUESTIONS[number])
        assert assert_exact(engine, prompt, REQUESTS[request_kind], 48, number) > 0


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("request_kind", ["greedy", "seeded"])
def test_fifty_answers_are_those_of_plain_decoding(engine, tokenizer, request_kind):
    """Issue 6: 50 prompts, 300 tokens each."""
    assert len(QUESTIONS) == 50
    drafted = 0
    for number, question in enumerate(QUESTIONS):
        prompt = prompt_of(tokenizer, question)
        drafted += assert_exact(engine, prompt, REQUESTS[request_kind], 300, number)
    assert drafted > 50 * 300 / 2
