"""Does the same engine give the same text on CUDA as on the CPU, and how fast is it there?

    python scripts/cuda_smoke.py --folder TINY_OR_REAL_CHECKPOINT ... [--store FOLDER --model NAME]

Each model is loaded in float32 on both devices and asked the same requests: greedy, and seeded
sampling with penalties and log-probabilities, through chunked prefill. Ids must agree by the
near-tie rule. Then bfloat16 on CUDA: prefill and decode speed, and memory over 1,000 tokens.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch

from benchmarks.protocol import agreement, surroundings
from forerun.base.errors import ForerunError
from forerun.contract.decoder import TokenLogprob
from forerun.contract.model import CacheOptions, TargetModel
from forerun.contract.sink import DoneReason, Figures
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.kernels.select import KernelChoice
from forerun.models.load import load_model
from forerun.nn.placement import Placement
from forerun.prefix.session import PrefixCache
from forerun.runner.compose import prepare_device
from forerun.sampling.options import SamplingOptions
from forerun.sampling.sampler import Sampler
from forerun.store.names import ModelName
from forerun.store.store import Store

CONTEXT = 4096
NEW_TOKENS = 64
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@dataclass(frozen=True)
class Checkpoint:
    """A config and the files of its tensors."""

    name: str
    config: dict[str, object]
    files: list[Path]

    def load(self, device: torch.device, dtype: torch.dtype) -> LoadedModel:
        with torch.inference_mode(False):
            model = load_model(self.config, self.files, Placement(dtype, device, KernelChoice()))
            return composed(model)


def composed(model: TargetModel) -> LoadedModel:
    facts = model.facts
    context = min(CONTEXT, facts.max_context)
    caches = model.new_caches(CacheOptions(context))
    return LoadedModel(
        model=model,
        caches=caches,
        prefix=PrefixCache(caches),
        sampler=Sampler(vocab_size=facts.vocab_size, context_length=context, device=facts.device),
        context=context,
        chunk=64 if facts.dtype == torch.float32 else 2048,
        look_ahead=int(facts.device.type == "cuda"),
    )


class Gathered:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.figures: Figures | None = None
        self.waited_s = 0.0

    def started(self, prompt_tokens: int, cached_tokens: int) -> None: ...

    def prefilled(self, tokens: int) -> None: ...

    def take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> int | None:
        self.tokens.extend(tokens)
        self.logprobs.extend(logprobs)
        return None

    def finish(self, _reason: DoneReason, figures: Figures) -> None:
        self.figures = figures

    def fail(self, error: ForerunError) -> None:
        raise error


def ask(
    loaded: LoadedModel, prompt: Sequence[int], budget: int, options: SamplingOptions
) -> Gathered:
    sink = Gathered()
    with torch.inference_mode():
        generate(loaded, Job(tuple(prompt), frozenset(), options, budget, sink, Event()))
    return sink


def margins(gathered: Gathered) -> list[float]:
    """Top-2 margin of log-probabilities over their scale, as the near-tie rule wants it."""
    found = []
    for entry in gathered.logprobs:
        best, second = entry.top[0][1], entry.top[1][1]
        found.append((best - second) / max(abs(second), 1.0))
    return found


def compare(checkpoint: Checkpoint) -> dict[str, object]:
    prompt = [(7 * i * i + 3 * i) % 250 for i in range(150)]
    requests = {
        "greedy": SamplingOptions(temperature=0.0, logprobs=True, top_logprobs=2),
        "seeded": SamplingOptions(
            temperature=0.8, seed=7, repeat_penalty=1.2, logprobs=True, top_logprobs=2
        ),
    }
    answers: dict[str, dict[str, Gathered]] = {}
    for device in (CPU, CUDA):
        loaded = checkpoint.load(device, torch.float32)
        answers[device.type] = {
            name: ask(loaded, prompt, NEW_TOKENS, options) for name, options in requests.items()
        }
        del loaded
        torch.cuda.empty_cache()
    row: dict[str, object] = {"model": checkpoint.name}
    for name in requests:
        plain, other = answers["cpu"][name], answers["cuda"][name]
        found = agreement(plain.tokens, other.tokens, margins(plain))
        row[name] = f"{found.equal} of {found.compared} ids equal"
        row[f"{name}_holds"] = found.holds if name == "greedy" else found.equal >= NEW_TOKENS // 2
    return row


def speed(checkpoint: Checkpoint) -> dict[str, object]:
    """bfloat16 on CUDA; the second of two runs, each on a prompt of its own."""
    loaded = checkpoint.load(CUDA, torch.bfloat16)
    greedy = SamplingOptions(temperature=0.0)
    length = min(1024, loaded.context // 2)
    figures = None
    for run in range(2):
        prompt = [(run + 11 * i) % 250 for i in range(length)]
        figures = ask(loaded, prompt, 128, greedy).figures
    assert figures is not None
    before = torch.cuda.memory_reserved()
    started = time.perf_counter()
    long = ask(loaded, [1, 2, 3], min(1000, loaded.context - 4), greedy)
    seconds = time.perf_counter() - started
    return {
        "prefill_tokens_per_s": round((length - figures.cached_tokens) / figures.prompt_seconds),
        "decode_tokens_per_s": round(figures.generated_tokens / figures.generation_seconds, 1),
        "long_answer_tokens_per_s": round(len(long.tokens) / seconds, 1),
        "reserved_growth_bytes": torch.cuda.memory_reserved() - before,
        "weight_bytes": loaded.model.facts.weight_bytes,
    }


def checkpoints(given: argparse.Namespace) -> list[Checkpoint]:
    found = []
    for folder in given.folder:
        config = json.loads((folder / "config.json").read_text())
        found.append(Checkpoint(folder.name, config, sorted(folder.glob("*.safetensors"))))
    if given.store:
        stored = Store(given.store).get(ModelName.parse(given.model))
        files = [stored.file(layer) for layer in stored.tensors]
        found.append(Checkpoint(given.model, stored.json("config.json"), files))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, nargs="*", default=[])
    parser.add_argument("--store", type=Path)
    parser.add_argument("--model", default="smollm2:135m")
    given = parser.parse_args()
    prepare_device(CUDA)
    rows = []
    for checkpoint in checkpoints(given):
        row = {**compare(checkpoint), **speed(checkpoint)}
        print(json.dumps(row), flush=True)
        rows.append(row)
    holds = all(row[f"{name}_holds"] for row in rows for name in ("greedy", "seeded"))
    device = torch.cuda.get_device_name()
    print(json.dumps({"holds": holds, "device": device, "rows": rows, **surroundings()}))
    return 0 if holds and rows else 1


if __name__ == "__main__":
    sys.exit(main())
