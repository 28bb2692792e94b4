"""The three parts of making a head, each of which goes on where an earlier call of it stopped.

The folder of the work holds the corpus, the reduced vocabulary and the training's state; nothing
else is kept between calls.
"""

import platform
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from forerun.base.errors import LoadError
from forerun.base.json_types import JsonObject
from forerun.base.paths import replacing
from forerun.training.acceptance import measure
from forerun.training.corpus import Corpus, counted, coverage, frequent, read_corpus
from forerun.training.encoded import EncodedPrompts
from forerun.training.export import write_head
from forerun.training.generation import Budget, write_corpus
from forerun.training.loop import Trained, Training
from forerun.training.recipe import Recipe, Report, Writing
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

    @property
    def corpus(self) -> Path:
        return self.folder / "corpus"

    @property
    def state(self) -> Path:
        return self.folder / "training.pt"

    @property
    def vocabulary(self) -> Path:
        return self.folder / "vocabulary.safetensors"


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


def train(work: Work, seconds: float) -> Training:
    """Train for so many seconds, or until the recipe is through."""
    training, _ = _opened(work)
    training.run(seconds, work.report)
    return training


def finish(work: Work, out: Path, origin: JsonObject) -> JsonObject:
    """Measure the head as it is, and write the checkpoint. Returns what is written as its recipe.

    origin  what the caller knows of the target: its name and digest
    """
    training, corpus = _opened(work)
    trained = training.trained
    kept, held = corpus.split()
    held = _first(held if len(held.lengths) else kept, _MEASURED)
    work.report("measuring", 0, 1)
    acceptance = measure(
        work.target,
        trained.head,
        trained.ids,
        held,
        depth=_DEPTH,
        batch_tokens=work.recipe.batch_tokens,
    )
    counts = counted(corpus, work.target.model.facts.vocab_size)
    made: JsonObject = {
        "target": origin,
        "recipe": work.recipe.as_json(),
        "writing": work.writing.as_json(),
        "corpus": {
            "sequences": len(corpus.lengths),
            "tokens": len(corpus.tokens),
            "written_by_target": int(corpus.own.sum()),
            "coverage": {str(size): share for size, share in coverage(counts, _SIZES).items()},
        },
        "training": _told(trained),
        "held_out": acceptance.as_json(),
        "machine": _machine(work.target),
    }
    write_head(out, work.target, trained.head, trained.ids, made)
    return made


def _opened(work: Work) -> tuple[Training, Corpus]:
    corpus = read_corpus(work.corpus)
    kept, _ = corpus.split()
    if not len(kept.lengths):
        raise LoadError(
            f"all that the model wrote in {work.corpus} is held out; give it more prompts or tokens"
        )
    ids = _vocabulary(work, corpus)
    return Training(work.target, kept, ids, work.recipe, work.state), corpus


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
