"""One training request from the model's name to the head's folder."""

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from forerun.base.errors import RequestError
from forerun.base.json_types import JsonObject
from forerun.protocol.training import TrainedHead, TrainRequest
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel
from forerun.training.encoded import EncodedPrompts, read_prompts, write_prompts
from forerun.training.export import WEIGHTS
from forerun.training.generation import Budget
from forerun.training.prompts import packaged
from forerun.training.recipe import Recipe, Report, Writing, going_on
from forerun.training.run import Work, ask, finish, train, write
from forerun.training.start import read_start
from forerun.training.target import load_target
from forerun.training.text import encode, openings, read_texts

UNFINISHED = "unfinished"  # folder inside the head's own, gone when it is done
_ASKING = 0.07  # of the minutes
_WRITING = 0.23
_TRAINING = 0.6

_ON_CUDA = (48_000, Writing(), Recipe())
_ON_CPU = (
    2_000,
    Writing(rows=16, capacity=512, answer=256),
    Recipe(batch_tokens=2048, warmup=20),
)


def train_head(request: TrainRequest, settings: Settings, report: Report) -> TrainedHead:
    """Go on with the head in `request.out`, or begin it. RequestError where it is done already."""
    stored = Store(settings.models).get(ModelName.parse(request.name))
    out = Path(request.out)
    device = _device(request.device or settings.device)
    if request.start is not None and not (Path(request.start) / WEIGHTS).is_file():
        raise RequestError(f"{request.start} holds no head to start from; give another --start")
    folder = _unfinished(out)
    count, writing, recipe = _ON_CUDA if device.type == "cuda" else _ON_CPU
    prompts = _prompts(stored, request, folder, count)
    report("loading", 0, 1)
    files = [stored.file(layer) for layer in stored.tensors]
    target = load_target(stored.json("config.json"), files, folder, device)
    start = None if request.start is None else read_start(Path(request.start), target)
    recipe = _for(recipe, request)
    asking, seconds = (60 * share * request.minutes for share in (_ASKING, _WRITING))
    times = {"writing prompts": asking, "writing": seconds}
    work = Work(folder, target, recipe, writing, _by_time(report, times), start)
    spoken = folder / "written"
    if not spoken.exists():
        own = ask(work, openings(stored), count // 2, asking)
        tokens = write(work, replace(prompts, self_written=own), Budget(10**9, seconds))
        spoken.write_text(str(tokens), encoding="utf-8")
    opened = train(work, 60 * _TRAINING * request.minutes)
    origin: JsonObject = {"name": str(stored.name), "digest": str(stored.digest)}
    made = finish(work, opened, out, origin)
    shutil.rmtree(folder)
    return _told(out, made)


def _unfinished(out: Path) -> Path:
    """The folder of the work in that of the head, made where it is not there."""
    folder = out / UNFINISHED
    try:
        if (out / WEIGHTS).exists():
            raise RequestError(f"{out} holds a head already; give another --out, or remove it")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"{out} cannot be made a folder ({error.strerror}); give another --out"
        ) from None
    return folder


def _by_time(report: Report, times: Mapping[str, float]) -> Report:
    """Writing has no end but that of its time."""
    began: dict[str, float] = {}

    def told(what: str, completed: int, total: int) -> None:
        if what in times:
            now, seconds = time.monotonic(), times[what]
            completed = int(min(now - began.setdefault(what, now), seconds))
            total = int(seconds) or 1
        report(what, completed, total)

    return told


def _for(recipe: Recipe, request: TrainRequest) -> Recipe:
    if request.start is not None:
        recipe = going_on(recipe)
    return replace(recipe, seed=request.seed, minutes=_TRAINING * request.minutes)


def _prompts(
    stored: StoredModel, request: TrainRequest, folder: Path, count: int
) -> EncodedPrompts:
    path = folder / "prompts.safetensors"
    if not path.exists():
        own = read_texts([Path(text) for text in request.texts])
        write_prompts(path, encode(stored, [*own, *packaged(count)], early=len(own)))
    return read_prompts(path)


def _device(wanted: str | None) -> torch.device:
    if wanted is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(wanted)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RequestError(f"device {wanted!r} is not here; train on cpu")
    if device.type not in ("cpu", "cuda"):
        raise RequestError(f"heads are trained on cpu or cuda, not on {wanted!r}")
    return device


def _told(out: Path, made: JsonObject) -> TrainedHead:
    held = made["held_out"]
    assert isinstance(held, dict)
    rates, tokens = held["acceptance"], held["tokens_a_round"]
    assert isinstance(rates, list)
    assert isinstance(tokens, list)
    return TrainedHead(
        folder=str(out),
        acceptance=[float(str(rate)) for rate in rates],
        tokens_a_round=[float(str(count)) for count in tokens],
    )
