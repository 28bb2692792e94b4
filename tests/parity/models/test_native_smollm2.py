"""The real quantised SmolLM2 on the native layers: bits and quality."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from fixtures.checkpoints import CPU
from fixtures.smollm2 import models_folder, smollm2
from fixtures.toy import ListSink
from forerun.contract.batch import Batch
from forerun.contract.model import TargetModel
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.kernels.select import KernelChoice
from forerun.models.load import load_model
from forerun.nn.placement import Placement
from forerun.runner.compose import assemble, load_engine
from forerun.runner.request import LoadRequest
from forerun.sampling.options import SamplingOptions
from forerun.store.stored import StoredModel

pytestmark = pytest.mark.model

TEXT = Path(__file__).parents[3] / "README.md"
POSITIONS = 256
MOST_DIVERGENCE = 0.0005  # mean KL of the float32 values' distributions from ours
ANSWER = 40  # tokens
QUESTION = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def stored() -> StoredModel:
    return smollm2()


@pytest.fixture(scope="module")
def native(stored: StoredModel) -> TargetModel:
    model = loaded(stored, torch.bfloat16, KernelChoice(threads=2))
    assert model.facts.own_threads
    return model


def loaded(stored: StoredModel, dtype: torch.dtype, kernels: KernelChoice) -> TargetModel:
    files = [stored.file(layer) for layer in stored.tensors]
    return load_model(stored.json("config.json"), files, Placement(dtype, CPU, kernels))


def encoded(stored: StoredModel, text: str) -> tuple[int, ...]:
    layer = stored.json_layer("tokenizer.json")
    assert layer is not None
    return tuple(Tokenizer.from_buffer(stored.read(layer)).encode(text).ids)


@torch.inference_mode()
def log_probabilities(model: TargetModel, tokens: Sequence[int]) -> Tensor:
    hidden = model.forward(Batch.of(tokens, 0, CPU), None).hidden
    return model.unembed(hidden)[0].double().log_softmax(-1)


def test_the_distribution_is_that_of_the_exact_values(
    stored: StoredModel, native: TargetModel
) -> None:
    """KER-1: the mean divergence over real text is at most 0.0005."""
    tokens = encoded(stored, TEXT.read_text(encoding="utf-8"))[:POSITIONS]
    assert len(tokens) == POSITIONS
    exact = loaded(stored, torch.float32, KernelChoice(cpu_kernels=False))
    wanted, ours = log_probabilities(exact, tokens), log_probabilities(native, tokens)
    divergence = float((wanted.exp() * (wanted - ours)).sum(-1).mean())
    agreement = float((wanted.argmax(-1) == ours.argmax(-1)).float().mean())
    shown = f"mean divergence {divergence:.5f}, {agreement:.1%} of the likeliest tokens agree"
    assert divergence <= MOST_DIVERGENCE, shown
    assert agreement >= 0.98, shown
    print(shown)  # noqa: T201 - with `pytest -s`


@pytest.mark.parametrize(
    "options",
    [SamplingOptions(temperature=0.0), SamplingOptions(temperature=0.9, seed=7)],
    ids=["greedy", "seeded"],
)
def test_warm_is_cold_whatever_the_chunks(
    stored: StoredModel, native: TargetModel, options: SamplingOptions
) -> None:
    """WID-1, WID-5: equal ids for every chunk size, and where the cache held the prompt."""
    prompt = encoded(stored, TEXT.read_text(encoding="utf-8"))[:600]
    prompt += encoded(stored, QUESTION)
    answers = []
    for chunk in (1, 5, 16, 512):
        engine = replace(assemble(native, 1024), chunk=chunk)
        for _ in ("cold", "warm"):
            answer = ListSink()
            job = Job(prompt, frozenset(), options, ANSWER, answer, answer.cancelled)
            with torch.inference_mode():
                generate(engine, job)
            assert answer.error is None
            answers.append(answer)
    assert all(answer.tokens == answers[0].tokens for answer in answers)
    cached = [answer.figures.cached_tokens for answer in answers if answer.figures is not None]
    assert [count > 0 for count in cached] == [False, True] * 4


def test_one_team_computes(stored: StoredModel) -> None:
    """WID-3, KER-1: the kernels' threads, and none of torch's beside them."""
    before = torch.get_num_threads()
    try:
        request = LoadRequest(str(stored.name), models_folder(), num_ctx=512, device="cpu")
        engine = load_engine(stored, replace(request, threads=2), lambda *_: None)
        assert engine.model.facts.own_threads
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
