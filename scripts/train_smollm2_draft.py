"""Makes the draft head of smollm2:135m on a machine that has torch, safetensors and a GPU alone.

    python scripts/train_smollm2_draft.py prepare --store STORE --to build/draft      (anywhere)
    python scripts/train_smollm2_draft.py run --work build/work --seconds 540         (on the GPU)

`prepare` needs the tokenizer: it writes the prompts as tokens, and the stored weights in parts that
each fit in a small parcel. `run` lets the target write prompts and answers, trains, and writes the
head, for so many seconds; called again, it goes on. With `--last` the schedule of the training ends
with the call. All it needs lies under `--parts`, all it makes under `--work`. The head is written
every half a minute, so that a call that is cut short leaves one.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from forerun.models.load import DRAFT
from forerun.training.encoded import read_prompts, write_prompts
from forerun.training.generation import Budget
from forerun.training.prompts import COUNT
from forerun.training.recipe import Recipe, Writing, going_on
from forerun.training.run import Work, ask, export, finish, open_training, write
from forerun.training.self_prompts import read_openings, write_openings
from forerun.training.start import read_start
from forerun.training.target import load_target

FIRST = "part1"  # where the prompts and the config lie
OPENED_S = 8  # for opening the training and writing heads
EXPORTED_S = 30  # between two heads that are written while training goes on
PROMPTS, OPENINGS = "prompts.safetensors", "openings.json"


def prepare(arguments: argparse.Namespace) -> None:
    from forerun.store.names import ModelName
    from forerun.store.store import Store
    from forerun.training.text import encode_packaged, openings

    stored = Store(arguments.store).get(ModelName.parse(arguments.model))
    first = arguments.to / FIRST
    first.mkdir(parents=True, exist_ok=True)
    write_prompts(first / PROMPTS, encode_packaged(stored, arguments.count))
    write_openings(first / OPENINGS, openings(stored))
    origin = {"name": str(stored.name), "digest": str(stored.digest)}
    (first / "config.json").write_text(json.dumps(stored.json("config.json")))
    (first / "origin.json").write_text(json.dumps(origin))
    sizes = [sum(path.stat().st_size for path in first.iterdir() if path.suffix != ".part")]
    parcels: list[list[Path]] = [[]]
    files = {path: path.stat().st_size for path in map(stored.file, stored.tensors)}
    for path in sorted(files, key=files.__getitem__, reverse=True):
        fitting = (n for n, size in enumerate(sizes) if size + files[path] <= arguments.largest)
        place = next(fitting, len(sizes))
        if place == len(sizes):
            sizes.append(0)
            parcels.append([])
        sizes[place] += files[path]
        parcels[place].append(path)
    for number, paths in enumerate(parcels):
        folder = arguments.to / f"part{number + 1}"
        folder.mkdir(exist_ok=True)
        _join(paths, folder)


def _join(paths: list[Path], folder: Path) -> None:
    """One file for each description of a format, since it speaks for the whole file."""
    groups: dict[str, dict[str, torch.Tensor]] = {}
    told: dict[str, dict[str, str]] = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            key = json.dumps(metadata, sort_keys=True)
            told[key] = metadata
            for name in file.keys():  # noqa: SIM118 - not a mapping
                if not name.startswith(DRAFT):
                    groups.setdefault(key, {})[name] = file.get_tensor(name)
    for number, (key, weights) in enumerate(groups.items()):
        save_file(weights, folder / f"weights-{number}.safetensors", told[key])


def run(arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    device = torch.device(arguments.device)
    torch.set_float32_matmul_precision("high")
    work = _work(arguments, device)
    print("loaded", round(time.monotonic() - began, 1), "s", flush=True)

    def left() -> float:
        return arguments.seconds - arguments.reserve - (time.monotonic() - began)

    note = arguments.work / "written"
    if not note.exists():
        _write(arguments, work, left)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if note.exists():
        _train(arguments, work, left)


def _write(arguments: argparse.Namespace, work: Work, left: Callable[[], float]) -> None:
    first = arguments.parts / FIRST
    prompts = read_prompts(first / PROMPTS)
    start = time.monotonic()
    seconds = min(left() / 4, arguments.prompt_seconds)
    own = ask(work, read_openings(first / OPENINGS), arguments.prompts, seconds)
    print(f"\n{len(own)} prompts of its own in {time.monotonic() - start:.0f} s", flush=True)
    spent = _spent(arguments.work)
    start = time.monotonic()
    seconds = min(left() if not arguments.last else left() / 2, arguments.write_seconds - spent)
    budget = Budget(arguments.tokens, seconds)
    tokens = write(work, replace(prompts, self_written=own), budget)
    spent += time.monotonic() - start
    (arguments.work / "write_seconds").write_text(str(spent))
    print(f"\n{tokens} tokens written in {spent:.0f} s", flush=True)
    if arguments.last or tokens >= arguments.tokens or spent >= arguments.write_seconds - 1:
        (arguments.work / "written").write_text(str(tokens))


def _train(arguments: argparse.Namespace, work: Work, left: Callable[[], float]) -> None:
    """Train, whatever comes: a head that is half done is a head."""
    out = arguments.out or arguments.work / "head"
    origin = json.loads((arguments.parts / FIRST / "origin.json").read_text())
    if arguments.last:
        minutes = min(work.recipe.minutes, max(left() - OPENED_S, 1) / 60)
        work = replace(work, recipe=replace(work.recipe, minutes=minutes))
    opened = open_training(work)
    export(work, opened, out, origin)
    training = opened.training
    try:
        while not training.finished and left() > 0:
            training.run(min(EXPORTED_S, left()), work.report)
            export(work, opened, out, origin)
    except RuntimeError:
        traceback.print_exc()
    trained = training.trained
    told = f"{trained.step} steps in {trained.seconds:.0f} s, loss {trained.loss:.4f}"
    print(f"\n{told}", flush=True)
    print("first losses", trained.losses[:5], flush=True)
    made = finish(work, opened, out, origin)
    print(json.dumps(made["held_out"]), "finished" if training.finished else "to be continued")


def _spent(folder: Path) -> float:
    path = folder / "write_seconds"
    return float(path.read_text()) if path.exists() else 0.0


def _work(arguments: argparse.Namespace, device: torch.device) -> Work:
    arguments.work.mkdir(parents=True, exist_ok=True)
    config = json.loads((arguments.parts / FIRST / "config.json").read_text())
    files = sorted(arguments.parts.glob("part*/weights-*"))
    target = load_target(config, files, arguments.work, device)
    recipe = Recipe(
        seed=arguments.seed,
        columns=arguments.columns,
        unroll=arguments.unroll,
        batch_tokens=arguments.batch_tokens,
        minutes=arguments.minutes,
    )
    if arguments.start is not None:
        recipe = going_on(recipe)
    writing = Writing(
        rows=arguments.rows, capacity=arguments.capacity, self_written=arguments.self_written
    )
    return Work(
        arguments.work,
        target,
        recipe,
        writing,
        _reporter(),
        start=None if arguments.start is None else read_start(arguments.start, target),
        keeps_state=not arguments.last,
    )


def _reporter():
    last = [0.0]

    def report(what: str, completed: int, total: int) -> None:
        now = time.monotonic()
        if now - last[0] > 10:
            last[0] = now
            memory = torch.cuda.max_memory_allocated() >> 30 if torch.cuda.is_available() else 0
            print(f"{now:.0f} {what} {completed} of {total}, {memory} GiB", flush=True)

    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    made = commands.add_parser("prepare")
    made.add_argument("--store", type=Path, required=True)
    made.add_argument("--model", default="smollm2:135m")
    made.add_argument("--to", type=Path, default=Path("build/draft"))
    made.add_argument("--count", type=int, default=COUNT, help="prompts")
    made.add_argument("--largest", type=int, default=35_000_000, help="bytes of a part")
    made.set_defaults(call=prepare)
    ran = commands.add_parser("run")
    ran.add_argument("--parts", type=Path, default=Path("build/draft"))
    ran.add_argument("--work", type=Path, default=Path("build/work"))
    ran.add_argument("--out", type=Path, help="where the head goes; default: head in the work")
    ran.add_argument("--device", default="cuda")
    ran.add_argument("--seconds", type=float, default=540, help="of this call, all in all")
    ran.add_argument("--reserve", type=float, default=40, help="of them, for measuring and export")
    ran.add_argument("--last", action="store_true", help="end the training with this call")
    ran.add_argument("--start", type=Path, help="folder of a head to go on from")
    ran.add_argument("--prompts", type=int, default=24_000, help="of the target's own, at most")
    ran.add_argument("--self-written", type=float, default=0.5, help="share of those prompts")
    ran.add_argument("--prompt-seconds", type=float, default=30)
    ran.add_argument("--write-seconds", type=float, default=330)
    ran.add_argument("--tokens", type=int, default=20_000_000)
    ran.add_argument("--minutes", type=float, default=15, help="of training, over all calls")
    ran.add_argument("--seed", type=int, default=0)
    ran.add_argument("--rows", type=int, default=2560)
    ran.add_argument("--capacity", type=int, default=640)
    ran.add_argument("--columns", type=int, default=8192)
    ran.add_argument("--unroll", type=int, default=4)
    ran.add_argument("--batch-tokens", type=int, default=24_576)
    ran.set_defaults(call=run)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
