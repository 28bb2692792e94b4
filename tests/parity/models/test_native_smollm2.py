"""The real quantised SmolLM2 on the native layers: bits, quality and memory."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import Tensor

from fixtures.checkpoints import CPU
from fixtures.smollm2 import models_folder, smollm2
from fixtures.toy import ListSink
from forerun.base.units import MIB
from forerun.contract.batch import Batch
from forerun.contract.model import TargetModel
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.engine.memory import anonymous_bytes, cache_bytes
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
MOST_DIVERGENCE = 0.005  # mean KL of the float32 values' distributions from ours
ANSWER = 40  # tokens
LONG = 8000
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
    """KER-1: the mean divergence over real text is at most 0.005."""
    tokens = encoded(stored, TEXT.read_text(encoding="utf-8"))[:POSITIONS]
    assert len(tokens) == POSITIONS
    exact = loaded(stored, torch.float32, KernelChoice(cpu_kernels=False))
    wanted, ours = log_probabilities(exact, tokens), log_probabilities(native, tokens)
    divergence = float((wanted.exp() * (wanted - ours)).sum(-1).mean())
    agreement = float((wanted.argmax(-1) == ours.argmax(-1)).float().mean())
    shown = f"mean divergence {divergence:.5f}, {agreement:.1%} of the likeliest tokens agree"
    assert divergence <= MOST_DIVERGENCE, shown
    assert agreement > 0.9, shown
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


MEMORY = """
import gc, json, sys
from pathlib import Path
import torch
from fixtures.smollm2 import smollm2
from forerun.kernels.select import KernelChoice
from forerun.models.load import load_model
from forerun.nn.placement import Placement

def anonymous():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])

stored = smollm2()
placement = Placement(torch.bfloat16, torch.device("cpu"), KernelChoice(threads=2))
config, files = stored.json("config.json"), [stored.file(layer) for layer in stored.tensors]
before = anonymous()
model = load_model(config, files, placement)
gc.collect()
assert model.facts.own_threads
print(json.dumps(anonymous() - before))
"""


def test_weights_are_in_memory_once(stored: StoredModel) -> None:
    """LOD-6: repacked weights and little else; what they were made of stays in its file."""
    environment = {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}
    environment["FORERUN_TEST_MODELS"] = str(models_folder())
    command = [sys.executable, "-c", MEMORY]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) <= 1.15 * stored_bytes(stored)


def stored_bytes(stored: StoredModel) -> int:
    """Of all tensors, which are what the packed ones hold too."""
    total = 0
    for layer in stored.tensors:
        with safe_open(stored.file(layer), "pt") as file:
            total += sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118
    return total


@pytest.mark.slow
def test_a_long_answer_allocates_nothing(native: TargetModel) -> None:
    """03 MEM-1 (plain), LOD-6: over 8,000 tokens memory grows by the rows written and no more."""
    engine = assemble(native, LONG + 64)
    prompt = tuple(range(100, 120))

    def ask(tokens: int) -> None:
        sink = ListSink()
        options = SamplingOptions(temperature=0.0)
        with torch.inference_mode():
            generate(engine, Job(prompt, frozenset(), options, tokens, sink, sink.cancelled))
        assert len(sink.tokens) == tokens

    ask(200)
    memory, held = anonymous_bytes(), cache_bytes(engine)
    ask(LONG)
    written = cache_bytes(engine) - held
    assert written > 0
    assert anonymous_bytes() - memory < written + 8 * MIB
