"""Does the same engine give the same text on CUDA as on the CPU, and how fast is it there?

    python scripts/cuda_smoke.py --folder TINY_OR_REAL_CHECKPOINT ... [--store FOLDER --model NAME]

Each model is loaded in float32 on both devices and asked the same requests, through chunked
prefill. Greedy ids must agree by the near-tie rule (spec 06 WID-6). Seeded ids, drawn with
penalties and log-probabilities, must all be equal: the rule speaks of greedy runs alone.
Then bfloat16 on CUDA: prefill and decode speed, and memory over 1,000 tokens.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch

from benchmarks.protocol import Agreement, agree, agreement, surroundings
from forerun.base.errors import ForerunError
from forerun.contract.decoder import TokenLogprob
from forerun.contract.sink import DoneReason, Figures
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.kernels.select import KernelChoice
from forerun.models.load import load_model
from forerun.nn.placement import Placement
from forerun.runner.compose import assemble, prepare_device
from forerun.sampling.options import SamplingOptions
from forerun.sampling.sampler import Sampled, Sampler
from forerun.store.names import ModelName
from forerun.store.store import Store

CONTEXT = 4096
NEW_TOKENS = 64
CHUNK = 64  # of the prompts that are compared: several a prompt
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@dataclass(frozen=True)
class Checkpoint:
    """A config and the files of its tensors."""

    name: str
    config: Mapping[str, object]
    files: list[Path]

    def load(self, device: torch.device, dtype: torch.dtype) -> LoadedModel:
        with torch.inference_mode(False):
            model = load_model(self.config, self.files, Placement(dtype, device, KernelChoice()))
            return assemble(model, min(CONTEXT, model.facts.max_context))


class MarginSampler(Sampler):
    """Keeps what the near-tie rule asks of each row: (top - second) / max |logit|."""

    def __init__(self, loaded: LoadedModel) -> None:
        facts = loaded.model.facts
        super().__init__(
            vocab_size=facts.vocab_size, context_length=loaded.context, device=facts.device
        )
        self.margins: list[float] = []

    def sample(
        self,
        slots: Sequence[int],
        logits: torch.Tensor,
        positions: Sequence[int],
        allowed: torch.Tensor | None = None,
    ) -> Sampled:
        row = logits[0].float()
        first, second = row.topk(2).values.tolist()
        self.margins.append((first - second) / row.abs().max().item())
        return super().sample(slots, logits, positions, allowed)


class Gathered:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.figures: Figures | None = None
        self.waited_s = 0.0

    def started(self, prompt_tokens: int, cached_tokens: int) -> None: ...

    def prefilled(self, tokens: int) -> None: ...

    def take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> int | None:
        self.tokens.extend(tokens)
        del logprobs
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


GREEDY = SamplingOptions(temperature=0.0)
SEEDED = SamplingOptions(temperature=0.8, seed=7, repeat_penalty=1.2, logprobs=True, top_logprobs=2)


def compare(checkpoint: Checkpoint) -> tuple[Agreement, Agreement]:
    """CPU against CUDA: greedy by the near-tie rule; seeded, where nothing excuses a difference."""
    prompt = [(7 * i * i + 3 * i) % 250 for i in range(150)]
    greedy: list[list[int]] = []
    seeded: list[list[int]] = []
    margins: list[list[float]] = []
    for device in (CPU, CUDA):
        loaded = checkpoint.load(device, torch.float32)
        sampler = MarginSampler(loaded)
        loaded = replace(loaded, chunk=CHUNK, sampler=sampler)
        greedy.append(ask(loaded, prompt, NEW_TOKENS, GREEDY).tokens)
        margins.append(sampler.margins[:])
        seeded.append(ask(loaded, prompt, NEW_TOKENS, SEEDED).tokens)
        del loaded, sampler
        torch.cuda.empty_cache()
    plain, other = greedy
    drawn, again = seeded
    return agreement(plain, other, margins[0]), agreement(drawn, again, [])


def in_words(found: Agreement) -> str:
    tie = ", then a near-tie" if found.near_tie else ""
    return f"{found.equal} of {found.compared} ids equal{tie}"


def speed(checkpoint: Checkpoint) -> dict[str, object]:
    """bfloat16 on CUDA; the second of two runs, each on a prompt of its own."""
    loaded = checkpoint.load(CUDA, torch.bfloat16)
    length = min(1024, loaded.context // 2)
    figures = None
    for run in range(2):
        prompt = [(run + 11 * i) % 250 for i in range(length)]
        figures = ask(loaded, prompt, 128, GREEDY).figures
    assert figures is not None
    before = torch.cuda.memory_reserved()
    started = time.perf_counter()
    long = ask(loaded, [1, 2, 3], min(1000, loaded.context - 4), GREEDY)
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
    rows, greedy_runs, seeded_runs = [], [], []
    for checkpoint in checkpoints(given):
        greedy, seeded = compare(checkpoint)
        row = {"model": checkpoint.name, "greedy": in_words(greedy), "seeded": in_words(seeded)}
        rows.append({**row, **speed(checkpoint)})
        print(json.dumps(rows[-1]), flush=True)
        greedy_runs.append(greedy)
        seeded_runs.append(seeded)
    holds = agree(greedy_runs) and all(run.holds for run in seeded_runs)
    device = torch.cuda.get_device_name()
    print(json.dumps({"holds": holds, "device": device, "rows": rows, **surroundings()}))
    return 0 if holds and rows else 1


if __name__ == "__main__":
    sys.exit(main())
