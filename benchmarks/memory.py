"""What does an answer take besides its rows, however long it is and however many follow?

    python benchmarks/memory.py [--model smollm2:135m] [--long 8000] [--answers 20] [--short 500]

Anonymous memory above its value after imports: after the load, along one long answer without the
rows of keys and values that it has written by then, and after each fifth of the short answers that
follow it. What is stored of conversations is held to `--budget`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch

from benchmarks.prefix_cache import Watch, words
from benchmarks.protocol import Interval, MemoryGrowth, interval, report
from forerun.base.units import MIB
from forerun.contract.decoder import TokenLogprob
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.engine.memory import cache_bytes, release_freed
from forerun.runner.compose import load_engine
from forerun.runner.request import LoadRequest
from forerun.sampling.options import SamplingOptions
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store

PROMPT = 100  # tokens
GREEDY = SamplingOptions(temperature=0.0)

Results = dict[str, Interval]


class Footprint(Watch):
    """Notes the memory and the rows each time that so many tokens have come."""

    def __init__(self, engine: LoadedModel, growth: MemoryGrowth, every: int) -> None:
        super().__init__()
        self.noted: list[tuple[int, int, int]] = []  # tokens, bytes of memory, bytes of rows
        self._engine, self._growth, self._every = engine, growth, every

    def take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> int | None:
        super().take(tokens, logprobs)
        if len(self.taken) % self._every == 0:
            rows = cache_bytes(self._engine)
            self.noted.append((len(self.taken), self._growth.bytes(), rows))
        return None


def loaded_model(name: str, context: int, budget: int) -> LoadedModel:
    settings = Settings.from_environment()
    stored = Store(settings.models).get(ModelName.parse(name))
    request = LoadRequest.under(settings, name, num_ctx=context, cache_bytes=budget, device="cpu")
    return load_engine(stored, request, lambda _phase, _done: None)


def answer(engine: LoadedModel, prompt: Sequence[int], tokens: int, sink: Watch) -> None:
    generate(engine, Job(tuple(prompt), frozenset(), GREEDY, tokens, sink, sink.cancelled))
    assert len(sink.taken) == tokens, (len(sink.taken), tokens)


def long_answer(engine: LoadedModel, growth: MemoryGrowth, chance: Random, tokens: int) -> Results:
    sink = Footprint(engine, growth, tokens // 8)
    answer(engine, words(engine, chance, PROMPT), tokens, sink)
    results = {
        f"token {count:,}, without its rows, MiB": mebibytes(held - rows)
        for count, held, rows in sink.noted
    }
    return results | {"rows at the end": mebibytes(sink.noted[-1][2])}


def short_answers(
    engine: LoadedModel, growth: MemoryGrowth, chance: Random, *, answers: int, tokens: int
) -> Results:
    results: Results = {}
    for number in range(1, answers + 1):
        answer(engine, words(engine, chance, PROMPT), tokens, Watch())
        if number % 5 == 0 or number == 1:
            results[f"short answer {number}, with all rows, MiB"] = mebibytes(growth.bytes())
    return results


def mebibytes(size: int) -> Interval:
    return interval([size / MIB])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--long", type=int, default=8000)
    parser.add_argument("--answers", type=int, default=20)
    parser.add_argument("--short", type=int, default=500)
    parser.add_argument("--budget", type=int, default=16 * MIB, help="bytes of snapshots")
    asked = parser.parse_args()
    growth, chance = MemoryGrowth(), Random(0)
    with torch.inference_mode():
        engine = loaded_model(asked.model, asked.long + 2 * PROMPT, asked.budget)
        results = {"loaded, MiB": mebibytes(growth.bytes())}
        release_freed(engine.model.facts.device)
        results["loaded, and freed memory given back, MiB"] = mebibytes(growth.bytes())
        results |= long_answer(engine, growth, chance, asked.long)
        results |= short_answers(engine, growth, chance, answers=asked.answers, tokens=asked.short)
    results["weights"] = mebibytes(engine.model.facts.weight_bytes)
    report(f"{asked.model}: anonymous memory", results, rounds=1, budget=asked.budget)


if __name__ == "__main__":
    main()
