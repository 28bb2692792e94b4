"""The three parts of making a head, each of which goes on where an earlier call of it stopped.

The folder of the work holds the corpus, the reduced vocabulary and the training's state; nothing
else is kept between calls.
"""

import platform
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from forerun.base.errors import LoadError
from forerun.base.json_types import JsonObject
from forerun.base.paths import replacing
from forerun.training.acceptance import Acceptance, measure
from forerun.training.corpus import Corpus, counted, coverage, frequent, read_corpus
from forerun.training.encoded import EncodedPrompts, read_prompts, write_prompts
from forerun.training.export import write_head
from forerun.training.generation import Budget, write_corpus
from forerun.training.loop import Trained, Training
from forerun.training.recipe import Recipe, Report, Writing
from forerun.training.self_prompts import Asking, Openings, write_self_prompts
from forerun.training.start import Start
from forerun.training.target import Target

_SIZES = (2048, 4096, 8192, 16384)  # of vocabularies whose coverage is told
_DEPTH = 6
_MEASURED = 512  # sequences


@dataclass(frozen=True, slots=True)
class Work:
    """What a head is made of and where."""

    folder: Path
    target: Target
    recipe: Recipe
    writing: Writing
    report: Report
    start: Start | None = None  # a head to go on from
    keeps_state: bool = True  # so that another call can go on with the training

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus"

    @property
    def state(self) -> Path:
        return self.folder / "training.pt"

    @property
    def vocabulary(self) -> Path:
        return self.folder / "vocabulary.safetensors"


def ask(work: Work, openings: Openings, count: int, seconds: float) -> EncodedPrompts:
    """Let the target write so many turns of a user, or for so many seconds: once for all calls."""
    path = work.folder / "self_prompts.safetensors"
    if not path.exists():
        turns = work.folder / "turns"
        asking = Asking(count, seconds, turns, work.writing.rows, work.recipe.seed)

        def report(what: str, completed: int, total: int) -> None:
            work.report(f"{what} prompts", completed, total)

        write_prompts(path, write_self_prompts(work.target, openings, asking, report))
    return read_prompts(path)


def write(work: Work, prompts: EncodedPrompts, budget: Budget) -> int:
    """Let the target write. Returns the tokens there are then, of its own."""
    return write_corpus(
        work.target,
        prompts,
        work.corpus,
        writing=work.writing,
        budget=budget,
        seed=work.recipe.seed,
        report=work.report,
    )


@dataclass(frozen=True, slots=True)
class Opened:
    """A head in training, and all the text that there is."""

    training: Training
    corpus: Corpus
    started_from: str | None  # digest of a head's weights


def open_training(work: Work) -> Opened:
    """The training as an earlier call left it, or at its beginning."""
    corpus = read_corpus(work.corpus)
    kept, _ = corpus.split()
    if not len(kept.lengths):
        raise LoadError(
            f"all that the model wrote in {work.corpus} is held out; give it more prompts or tokens"
        )
    state = work.state if work.keeps_state else None
    if work.start is None:
        ids = _vocabulary(work, corpus)
        return Opened(Training(work.target, kept, ids, work.recipe, state), corpus, None)
    counts = counted(corpus, work.target.model.facts.vocab_size)
    start = work.start.widened(counts, work.recipe.columns, work.target)
    recipe = replace(work.recipe, columns=len(start.ids))
    training = Training(work.target, kept, start.ids, recipe, state, start=start.head)
    return Opened(training, corpus, start.digest)


def train(work: Work, seconds: float) -> Opened:
    """Train for so many seconds, or until the recipe is through."""
    opened = open_training(work)
    opened.training.run(seconds, work.report)
    return opened


def export(work: Work, opened: Opened, out: Path, origin: JsonObject) -> JsonObject:
    """Write the head as it is, not measured. Arguments and result as in `finish`."""
    made = _made(work, opened, origin)
    _write_head(work, opened, out, made)
    return made


def _write_head(work: Work, opened: Opened, out: Path, made: JsonObject) -> None:
    trained = opened.training.trained
    write_head(out, work.target, trained.head, trained.ids, made)


def _made(work: Work, opened: Opened, origin: JsonObject) -> JsonObject:
    """All that the head came from."""
    trained, corpus = opened.training.trained, opened.corpus
    counts = counted(corpus, work.target.model.facts.vocab_size)
    covered = int(counts[trained.ids].sum()) / max(int(counts.sum()), 1)
    return {
        "target": origin,
        "started_from": opened.started_from,
        "recipe": opened.training.recipe.as_json(),
        "writing": work.writing.as_json(),
        "corpus": {
            "sequences": len(corpus.lengths),
            "of_self_written_prompts": len(corpus.by_author()[1].lengths),
            "tokens": len(corpus.tokens),
            "written_by_target": int(corpus.own.sum()),
            "coverage": {str(size): share for size, share in coverage(counts, _SIZES).items()},
            "covered": round(covered, 4),
        },
        "training": _told(trained),
        "machine": _machine(work.target),
    }


def finish(work: Work, opened: Opened, out: Path, origin: JsonObject) -> JsonObject:
    """Measure the head as it is, and write it. Returns what is written as its recipe.

    origin  what the caller knows of the target: its name and digest
    """
    made = _made(work, opened, origin)
    kept, held = opened.corpus.split()
    held = _first(held if len(held.lengths) else kept, _MEASURED)
    work.report("measuring", 0, 1)
    parts = [_measured(work, opened, part) for part in held.by_author()]
    held_out = parts[0].plus(parts[1]).as_json()
    held_out["packaged"], held_out["self_written"] = (part.as_json() for part in parts)
    made["held_out"] = held_out
    _write_head(work, opened, out, made)
    return made


def _measured(work: Work, opened: Opened, corpus: Corpus) -> Acceptance:
    trained = opened.training.trained
    batch_tokens = work.recipe.batch_tokens
    return measure(
        work.target, trained.head, trained.ids, corpus, depth=_DEPTH, batch_tokens=batch_tokens
    )


def _vocabulary(work: Work, corpus: Corpus) -> Tensor:
    """Chosen once, by the text that there was then."""
    if not work.vocabulary.exists():
        counts = counted(corpus, work.target.model.facts.vocab_size)
        with replacing(work.vocabulary) as file:
            file.write(save({"ids": frequent(counts, work.recipe.columns)}))
    return load_file(work.vocabulary)["ids"]


def _first(corpus: Corpus, count: int) -> Corpus:
    return corpus.select(torch.arange(len(corpus.lengths)) < count)


def _told(trained: Trained) -> JsonObject:
    return {
        "steps": trained.step,
        "seconds": round(trained.seconds, 1),
        "losses": [
            [step, loss] for step, loss in trained.losses[:: -(-len(trained.losses) // 100) or 1]
        ],
    }


def _machine(target: Target) -> JsonObject:
    on_cuda = target.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_cuda else platform.machine(),
        "torch": torch.__version__,
        "day": time.strftime("%Y-%m-%d"),
    }
