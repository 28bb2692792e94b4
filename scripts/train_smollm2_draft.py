"""Makes the draft head of smollm2:135m on a machine that has torch, safetensors and a GPU alone.

    python scripts/train_smollm2_draft.py prepare --store STORE --to build/draft      (anywhere)
    python scripts/train_smollm2_draft.py run --work build/work --seconds 540         (on the GPU)

`prepare` needs the tokenizer: it writes the prompts as tokens, and the stored weights in two parts
that each fit in a small parcel. `run` writes text, trains, and writes the head, for so many
seconds; called again, it goes on. All it needs lies under `--parts`, all it makes under `--work`.
"""

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from forerun.training.encoded import read_prompts, write_prompts
from forerun.training.generation import Budget
from forerun.training.prompts import COUNT
from forerun.training.recipe import Recipe, Writing
from forerun.training.run import Work, finish, train, write
from forerun.training.target import load_target

PARTS = ("part1", "part2")
HALF = 44_000_000  # bytes of the first part


def prepare(arguments: argparse.Namespace) -> None:
    from forerun.store.names import ModelName
    from forerun.store.store import Store
    from forerun.training.text import encode_packaged

    stored = Store(arguments.store).get(ModelName.parse(arguments.model))
    folders = [arguments.to / part for part in PARTS]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    write_prompts(folders[0] / "prompts.safetensors", encode_packaged(stored, arguments.count))
    origin = {"name": str(stored.name), "digest": str(stored.digest)}
    (folders[0] / "config.json").write_text(json.dumps(stored.json("config.json")))
    (folders[0] / "origin.json").write_text(json.dumps(origin))
    size = 0
    parcels: list[list[Path]] = [[], []]
    for layer in stored.tensors:
        path = stored.file(layer)
        parcels[size > HALF].append(path)
        size += path.stat().st_size
    for folder, paths in zip(folders, parcels, strict=True):
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
        prompts = read_prompts(arguments.parts / PARTS[0] / "prompts.safetensors")
        spent = _spent(arguments.work)
        seconds = min(left(), arguments.write_seconds - spent)
        start = time.monotonic()
        tokens = write(work, prompts, Budget(arguments.tokens, seconds))
        spent += time.monotonic() - start
        (arguments.work / "write_seconds").write_text(str(spent))
        print(f"\n{tokens} tokens written in {spent:.0f} s", flush=True)
        if tokens >= arguments.tokens or spent >= arguments.write_seconds - 1:
            note.write_text(str(tokens))
        if device.type == "cuda":
            torch.cuda.empty_cache()
    if note.exists() and left() > 5:
        training = train(work, left())
        trained = training.trained
        told = f"{trained.step} steps in {trained.seconds:.0f} s, loss {trained.loss:.4f}"
        print(f"\n{told}", flush=True)
        origin = json.loads((arguments.parts / PARTS[0] / "origin.json").read_text())
        made = finish(work, arguments.out or arguments.work / "head", origin)
        print(json.dumps(made["held_out"]), "finished" if training.finished else "to be continued")


def _spent(folder: Path) -> float:
    path = folder / "write_seconds"
    return float(path.read_text()) if path.exists() else 0.0


def _work(arguments: argparse.Namespace, device: torch.device) -> Work:
    arguments.work.mkdir(parents=True, exist_ok=True)
    config = json.loads((arguments.parts / PARTS[0] / "config.json").read_text())
    files = [path for part in PARTS for path in (arguments.parts / part).glob("weights-*")]
    target = load_target(config, files, arguments.work, device)
    recipe = Recipe(
        seed=arguments.seed,
        columns=arguments.columns,
        unroll=arguments.unroll,
        batch_tokens=arguments.batch_tokens,
        minutes=arguments.minutes,
    )
    writing = Writing(rows=arguments.rows, capacity=arguments.capacity)
    return Work(arguments.work, target, recipe, writing, _reporter())


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
    made.set_defaults(call=prepare)
    ran = commands.add_parser("run")
    ran.add_argument("--parts", type=Path, default=Path("build/draft"))
    ran.add_argument("--work", type=Path, default=Path("build/work"))
    ran.add_argument("--out", type=Path, help="where the head goes; default: head in the work")
    ran.add_argument("--device", default="cuda")
    ran.add_argument("--seconds", type=float, default=540, help="of this call, all in all")
    ran.add_argument("--reserve", type=float, default=40, help="of them, for measuring and export")
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
