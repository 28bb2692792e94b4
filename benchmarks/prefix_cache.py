"""What is a warm conversation worth, and what does keeping it warm cost?

    python benchmarks/prefix_cache.py [--model smollm2:135m] [--rounds 5] [--tokens 4000]

- *switch*: four conversations take turns; the first token of a turn beside that of a cold prefill
  of the same prompt. *restore*: bytes of keys and values brought back a second, beside what the
  machine copies in the same run.
- *cancel*: a prompt cancelled after its first chunk, five times; every retry must start where the
  attempt before it stopped.
- *capture*: prefill with a capture every 256 tokens beside prefill without any.
- *memory*: 300 requests of one 500-token prefix with random tails; anonymous memory once the
  budget is reached and at the end, and what clearing gives back.
"""

import argparse
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch

from benchmarks.protocol import (
    Contender,
    Interval,
    interleave,
    interval,
    ratio,
    report,
    timed,
)
from forerun.base.errors import CancelledError, ForerunError
from forerun.base.units import MIB
from forerun.contract.decoder import TokenLogprob
from forerun.contract.sink import DoneReason, Figures
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.engine.memory import anonymous_bytes, release_freed
from forerun.prefix.captures import CaptureRule
from forerun.prefix.prefix_cache import PrefixCache
from forerun.runner.compose import load_engine
from forerun.runner.request import LoadRequest
from forerun.sampling.options import SamplingOptions
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store

CONVERSATIONS = 4
TURN = 16  # tokens that a turn adds
NO_CAPTURES = CaptureRule(interval=1 << 40, before_end=1 << 40)
MANY_CAPTURES = CaptureRule(interval=256)

Results = dict[str, Interval]


class Watch:
    """A sink that notes when the first token came, and may cancel after a chunk."""

    def __init__(self, *, cancel_at: int | None = None) -> None:
        self.cancelled = threading.Event()
        self.first_s: float | None = None
        self.figures: Figures | None = None
        self.evaluated = 0
        self.taken: list[int] = []
        self._cancel_at, self._begun = cancel_at, time.perf_counter()

    @property
    def waited_s(self) -> float:
        return 0.0

    def started(self, prompt_tokens: int, cached_tokens: int) -> None:
        del prompt_tokens
        self.cached = self.evaluated = cached_tokens

    def prefilled(self, tokens: int) -> None:
        self.evaluated = tokens
        if self._cancel_at is not None and tokens >= self._cancel_at:
            self.cancelled.set()

    def take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> int | None:
        del logprobs
        if self.first_s is None:
            self.first_s = time.perf_counter() - self._begun
        self.taken += tokens
        return None

    def finish(self, reason: DoneReason, figures: Figures) -> None:
        del reason
        self.figures = figures

    def fail(self, error: ForerunError) -> None:
        if not isinstance(error, CancelledError):
            raise error


def ask(loaded: LoadedModel, tokens: Sequence[int], budget: int = 1, **watch: int) -> Watch:
    sink = Watch(**watch)
    sampling = SamplingOptions(temperature=0.0)
    generate(loaded, Job(tuple(tokens), frozenset(), sampling, budget, sink, sink.cancelled))
    return sink


def loaded_model(name: str, context: int) -> LoadedModel:
    settings = Settings.from_environment()
    stored = Store(settings.models).get(ModelName.parse(name))
    request = LoadRequest.under(settings, name, num_ctx=context)
    return load_engine(stored, request, lambda _phase, _done: None)


def words(loaded: LoadedModel, chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(1000, loaded.model.facts.vocab_size) for _ in range(count)]


def switching(loaded: LoadedModel, rounds: int, length: int) -> Results:
    """First tokens of four conversations in turn, and of the same prompts from nothing."""
    chance = random.Random(0)
    talks = [words(loaded, chance, length) for _ in range(CONVERSATIONS)]

    def cold() -> float:
        loaded.prefix.clear()
        return _first(ask(loaded, talks[0]))

    ask(loaded, talks[-1])  # what is only slow the first time is over

    cold_s = [cold() for _ in range(max(3, rounds // 2))]
    loaded.prefix.clear()
    for talk in talks:
        ask(loaded, talk)
    warm_s = []
    for _ in range(rounds):
        for talk in talks:
            talk += words(loaded, chance, TURN)
            sink = ask(loaded, talk)
            assert sink.cached >= len(talk) - TURN - 1, (sink.cached, len(talk))
            warm_s.append(_first(sink))
    share = [warm / statistics.median(cold_s) for warm in warm_s]
    return {
        "cold prefill, s to the first token": interval(cold_s),
        "switched to, s to the first token": interval(warm_s),
        "switched / cold": interval(share),
        "switched / cold, worst": interval([max(share)]),
        **_restoring(loaded, talks, rounds),
    }


def _restoring(loaded: LoadedModel, talks: Sequence[list[int]], rounds: int) -> Results:
    """Bytes a second that a switch of paths moves, beside a plain copy of as many bytes."""
    held = sum(cache.nbytes() for cache in loaded.caches if cache is not None)
    device = loaded.model.facts.device
    source, target = (torch.ones(held // 4, device=device) for _ in range(2))
    turn = iter(_endlessly(talks))

    def restore() -> float:
        prompt, start = next(turn), time.perf_counter()
        session = loaded.prefix.begin(prompt)
        _wait_for(device)
        seconds = time.perf_counter() - start
        with session:
            assert session.cached > 0
        return held / seconds

    def copy() -> float:
        _wait_for(device)
        return held / timed(lambda: (target.copy_(source), _wait_for(device)))

    figures = interleave(
        [Contender("restore", restore), Contender("copy", copy)],
        4 * rounds,
        warm_up=CONVERSATIONS,
    )
    return {
        "restored, GB/s": interval([figure / 1e9 for figure in figures["restore"]]),
        "copied, GB/s": interval([figure / 1e9 for figure in figures["copy"]]),
        "restored / copied": ratio(figures["restore"], figures["copy"]),
    }


def cancelling(loaded: LoadedModel, length: int) -> Results:
    """A retry starts where the attempt stopped, five times in a row."""
    loaded = replace(loaded, chunk=min(loaded.chunk, length // 8))
    loaded.prefix.clear()
    prompt = words(loaded, random.Random(1), length)
    stopped = 0
    for _ in range(5):
        sink = ask(loaded, prompt, cancel_at=stopped + 1)
        assert sink.cached == stopped, (sink.cached, stopped)
        assert sink.evaluated > stopped, "no chunk was evaluated"
        stopped = sink.evaluated
    sink = ask(loaded, prompt)
    assert sink.cached == stopped, (sink.cached, stopped)
    return {"tokens kept of five cancelled attempts": interval([float(stopped)])}


def capturing(loaded: LoadedModel, rounds: int, length: int) -> Results:
    """Prefill with captures beside prefill without; the forwards are the same ones."""
    chance = random.Random(2)

    def prefill_with(rule: CaptureRule) -> Callable[[], float]:
        engine = replace(loaded, prefix=PrefixCache(loaded.caches, captures=rule))

        def run() -> float:
            engine.prefix.clear()
            prompt = words(loaded, chance, length)
            seconds = timed(lambda: ask(engine, prompt, 0))
            engine.prefix.clear()
            return seconds

        return run

    contenders = [
        Contender("captures", prefill_with(MANY_CAPTURES)),
        Contender("none", prefill_with(NO_CAPTURES)),
    ]
    figures = interleave(contenders, rounds)
    return {
        "prefill with captures, s": interval(figures["captures"]),
        "prefill without, s": interval(figures["none"]),
        "with / without": ratio(figures["captures"], figures["none"]),
    }


def remembering(loaded: LoadedModel, budget: int) -> Results:
    """Memory over 300 requests of one prefix, in MiB above the level after load."""
    after_load = held_bytes(loaded)
    chance = random.Random(3)
    loaded.prefix.clear()
    loaded.prefix.set_budget(budget)
    prefix, grown = words(loaded, chance, 500), []
    ask(loaded, [*prefix, *words(loaded, chance, 30)], 20)
    release_freed(loaded.model.facts.device)
    full = 0
    for number in range(300):
        ask(loaded, [*prefix, *words(loaded, chance, 30)], 20)
        grown.append((held_bytes(loaded) - after_load) / MIB)
        if not full and loaded.prefix.snapshot_bytes > 0.8 * budget:
            full = number
    stored = loaded.prefix.snapshot_bytes / MIB
    loaded.prefix.clear()
    release_freed(loaded.model.facts.device)
    half = full + (300 - full) // 2
    return {
        "requests until the budget was reached": interval([float(full)]),
        "stored, MiB": interval([stored]),
        "grown since load, first half, MiB": interval(grown[full:half]),
        "grown since load, second half, MiB": interval(grown[half:]),
        "left after clearing, MiB": interval([(held_bytes(loaded) - after_load) / MIB]),
    }


def held_bytes(loaded: LoadedModel) -> int:
    """Anonymous memory of this process on a CPU, memory of tensors on a GPU."""
    device = loaded.model.facts.device
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else anonymous_bytes()


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _first(sink: Watch) -> float:
    assert sink.first_s is not None, "no token came"
    return sink.first_s


def _endlessly(talks: Sequence[list[int]]) -> Iterator[list[int]]:
    while True:
        yield from talks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--budget", type=int, default=64 * MIB, help="bytes, of the memory part")
    parser.add_argument("--only", default="switch,cancel,capture,memory")
    asked = parser.parse_args()
    only = asked.only.split(",")
    results: Results = {}
    kept: Results = {}
    with torch.inference_mode():
        loaded = loaded_model(asked.model, 2 * asked.tokens)
        if "memory" in only:
            kept = remembering(loaded, asked.budget)
            loaded.prefix.set_budget(8 << 30)
        if "switch" in only:  # first in the report, since a plot draws what shares its first unit
            results |= switching(loaded, asked.rounds, asked.tokens)
        if "cancel" in only:
            results |= cancelling(loaded, asked.tokens)
        if "capture" in only:
            results |= capturing(loaded, 2 * asked.rounds + 1, min(asked.tokens, 2048))
    report(f"{asked.model}: conversations kept warm", results | kept, rounds=asked.rounds)


if __name__ == "__main__":
    main()
