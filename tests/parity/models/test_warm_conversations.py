"""Answers from a warm cache beside those of an empty one, over many steps of many conversations.

A step goes on with a conversation, edits one, repeats one or begins a new one; the warm engine
keeps all of them within a budget that does not hold them all, the cold one forgets everything
before each step. Both draw greedily; what differs must be a near-tie (06 WID-5, WID-6; B07).
"""

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from benchmarks.protocol import Agreement, agree, agreement
from fixtures.checkpoints import loaded as load_tiny
from fixtures.smollm2 import smollm2
from fixtures.tiny import tiny_folder
from fixtures.toy import GREEDY, ListSink
from forerun.contract.batch import Batch
from forerun.contract.model import CacheOptions, TargetModel
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.kernels.select import KernelChoice
from forerun.models.load import load_model
from forerun.nn.placement import Placement
from forerun.prefix.captures import CaptureRule
from forerun.prefix.prefix_cache import PrefixCache
from forerun.sampling.sampler import Sampler

CPU = torch.device("cpu")
CONTEXT = 512
DRAWN = 8  # tokens of each answer


def engine(model: TargetModel, budget_bytes: int) -> LoadedModel:
    caches = model.new_caches(CacheOptions(CONTEXT, slack=16))
    return LoadedModel(
        model=model,
        caches=caches,
        prefix=PrefixCache(
            caches, budget_bytes=budget_bytes, captures=CaptureRule(interval=64, before_end=4)
        ),
        sampler=Sampler(
            vocab_size=model.facts.vocab_size, context_length=CONTEXT, device=model.facts.device
        ),
        context=CONTEXT,
        chunk=96,
        look_ahead=0,
    )


def answer(loaded: LoadedModel, prompt: list[int]) -> ListSink:
    sink = ListSink()
    generate(loaded, Job(tuple(prompt), frozenset(), GREEDY, DRAWN, sink, sink.cancelled))
    assert sink.error is None
    return sink


class Conversations:
    """Prompts as users make them: mostly of what was said before."""

    def __init__(self, vocabulary: int, seed: int = 0) -> None:
        self._chance = random.Random(seed)
        self._vocabulary = vocabulary
        self._system = self._words(40)
        self._said: list[list[int]] = []

    def next(self) -> list[int]:
        kind = self._chance.choice(["go on", "go on", "edit", "repeat", "begin"])
        if kind == "begin" or not self._said:
            return [*self._system, *self._words(20)]
        known = self._chance.choice(self._said[-6:])
        if kind == "repeat":
            return list(known)
        if kind == "edit":
            known = known[: self._chance.randrange(1, len(known))]
        return [*known, *self._words(self._chance.randrange(1, 30))][-(CONTEXT - DRAWN) :]

    def heard(self, prompt: list[int], reply: list[int]) -> None:
        self._said.append([*prompt, *reply])

    def _words(self, count: int) -> list[int]:
        return [self._chance.randrange(self._vocabulary) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Outcome:
    agreements: list[Agreement]
    cached: int  # tokens of all prompts
    prompted: int


def converse(model: TargetModel, steps: int, budget_bytes: int) -> Outcome:
    warm, cold = engine(model, budget_bytes), engine(model, 0)
    talks, agreements, cached, prompted = Conversations(model.facts.vocab_size), [], 0, 0
    with torch.inference_mode():
        for _ in range(steps):
            prompt = talks.next()
            cold.prefix.clear()
            said, again = answer(warm, prompt), answer(cold, prompt)
            margins = [] if said.tokens == again.tokens else _margins(model, prompt, again.tokens)
            agreements.append(agreement(again.tokens, said.tokens, margins))
            cached += int(said.calls[0].split()[2])
            prompted += len(prompt)
            talks.heard(prompt, said.tokens)
    return Outcome(agreements, cached, prompted)


def _margins(model: TargetModel, prompt: list[int], drawn: list[int]) -> list[float]:
    """(top - second) / max|logit| where each of `drawn` was drawn."""
    batch = Batch.of([*prompt, *drawn[:-1]], 0, CPU)
    logits = model.unembed(model.forward(batch, None).hidden[0, len(prompt) - 1 :]).float()
    top = logits.topk(2).values
    return ((top[:, 0] - top[:, 1]) / logits.abs().amax(-1)).tolist()


def test_a_model_with_windows_answers_warm_as_cold_over_200_steps(tmp_path: Path) -> None:
    model = load_tiny(tiny_folder(tmp_path, "gemma3", max_position_embeddings=1024))
    outcome = converse(model, 200, budget_bytes=300_000)
    assert agree(outcome.agreements)
    assert outcome.cached > 0.4 * outcome.prompted, "most of it was there already"


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_smollm2_answers_warm_as_cold_over_200_steps() -> None:
    """In float32: bfloat16 rounds by more than a near-tie where chunks end elsewhere."""
    stored = smollm2()
    files = [stored.file(layer) for layer in stored.tensors]
    placement = Placement(torch.float32, CPU, KernelChoice(cpu_kernels=False))
    model = load_model(stored.json("config.json"), files, placement)
    outcome = converse(model, 200, budget_bytes=64 << 20)
    assert agree(outcome.agreements)
    assert outcome.cached > 0.4 * outcome.prompted
