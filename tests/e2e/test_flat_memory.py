"""What the real quantised SmolLM2 takes on the native layers: its weights once, and rows."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
import torch
from safetensors import safe_open

from fixtures.native_kernels import native_library
from fixtures.smollm2 import models_folder, smollm2
from fixtures.toy import GREEDY, ListSink
from forerun.base.units import MIB
from forerun.contract.decoder import TokenLogprob
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.engine.memory import anonymous_bytes, cache_bytes
from forerun.kernels.select import KernelChoice
from forerun.models.load import load_model
from forerun.nn.placement import Placement
from forerun.runner.compose import assemble
from forerun.store.stored import StoredModel

pytestmark = pytest.mark.model

MOST = 1.15  # of the weights' bytes
FREED = 0.15  # of them: what quantising a head took, which may stay until it is given back
CONTEXT, LONG = 8192, 8000  # tokens
ANSWERS, SHORT, PROMPT = 20, 500, 100
SNAPSHOTS = 16 * MIB  # the budget: one short answer's rows (13 MiB), and not two
FILLING = 6  # answers until it is full, beside the one that is stored next
SLACK = 2 * MIB

LOAD = """
import gc, json, sys
import torch
from fixtures.smollm2 import models_folder, smollm2
from forerun.engine.memory import anonymous_bytes, release_freed
from forerun.runner.compose import load_engine
from forerun.runner.request import LoadRequest

stored = smollm2()
request = LoadRequest(str(stored.name), models_folder(), num_ctx=8192, device="cpu", threads=2)
before = peak = anonymous_bytes()

def progress(*_):
    global peak
    peak = max(peak, anonymous_bytes())

engine = load_engine(stored, request, progress)
assert engine.model.facts.own_threads
gc.collect()
loaded = anonymous_bytes()
release_freed(torch.device("cpu"))
print(json.dumps([peak - before, loaded - before, anonymous_bytes() - before]))
"""


@pytest.fixture(scope="module")
def stored() -> StoredModel:
    native_library()
    return smollm2()


def stored_bytes(stored: StoredModel) -> int:
    """Of all tensors, which are what the packed ones hold too."""
    total = 0
    for layer in stored.tensors:
        with safe_open(stored.file(layer), "pt") as file:
            total += sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118
    return total


def test_weights_are_in_memory_once(stored: StoredModel) -> None:
    """05 LOD-6: repacked weights and little else; what they were made of stays in its file.

    In a process that has imported what a load needs, with caches reserved for 8,192 tokens, before
    and after what the load freed was given back.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    environment["FORERUN_TEST_MODELS"] = str(models_folder())
    command = [sys.executable, "-c", LOAD]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    peak, loaded, kept = (figure / stored_bytes(stored) for figure in json.loads(done.stdout))
    shown = f"of the weights' bytes: peak {peak:.3f}, loaded {loaded:.3f}, kept {kept:.3f}"
    assert loaded <= MOST + FREED, shown
    assert kept <= MOST, shown
    print(shown)  # noqa: T201 - with `pytest -s`


@dataclass
class Footprint(ListSink):
    """Notes, every 250 tokens, the memory that no row of the caches explains."""

    engine: LoadedModel
    beyond_rows: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> int | None:
        super().take(tokens, logprobs)
        if len(self.tokens) % 250 == 0:
            self.beyond_rows.append(anonymous_bytes() - cache_bytes(self.engine))
        return None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_is_flat_over_long_and_many_answers(stored: StoredModel) -> None:
    """03 MEM-1 (plain), 05 LOD-6: over 8,000 tokens, and then over 20 answers of 500.

    What is stored of conversations is held to 16 MiB. Until that is full the process grows by up to
    two answers' rows, and the allocator keeps what the long answer's rows took when they were
    copied out to be stored, and dropped as too many.
    """
    files = [stored.file(layer) for layer in stored.tensors]
    placement = Placement(torch.bfloat16, torch.device("cpu"), KernelChoice(threads=2))
    model = load_model(stored.json("config.json"), files, placement)
    assert model.facts.own_threads
    engine, chance = assemble(model, CONTEXT, cache_bytes=SNAPSHOTS), Random(0)

    def ask(tokens: int) -> list[int]:
        sink = Footprint(engine)
        prompt = tuple(chance.randrange(1000, 40_000) for _ in range(PROMPT))
        with torch.inference_mode():
            generate(engine, Job(prompt, frozenset(), GREEDY, tokens, sink, sink.cancelled))
        assert sink.error is None
        assert len(sink.tokens) == tokens
        return sink.beyond_rows

    beyond = ask(LONG)
    half = beyond[len(beyond) // 2 :]
    assert max(half) - half[0] <= SLACK, [round(size / MIB, 1) for size in half]
    after = []
    for _ in range(ANSWERS):
        ask(SHORT)
        after.append(anonymous_bytes())
    shown = [round(size / MIB, 1) for size in after]
    assert max(after[FILLING:]) - after[FILLING - 1] <= SLACK, shown
