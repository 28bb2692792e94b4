"""Trains a head, step by step, in runs that continue one another.

Soft targets from the target's own distribution over the reduced vocabulary; the chain is fed the
text's true tokens. State is written every minute, whole or not at all, and a run that is resumed
makes the weights that an uninterrupted one makes, on a device whose operations are deterministic.
"""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from forerun.base.errors import LoadError
from forerun.base.paths import replacing
from forerun.training.batches import Lesson, Lessons
from forerun.training.corpus import Chosen, Corpus, epoch
from forerun.training.head import Head, begin
from forerun.training.loss import soft_cross_entropy
from forerun.training.recipe import Recipe, Report
from forerun.training.target import Target
from forerun.training.unroll import Masks, unroll

_SAVE_S = 60.0
_LOSS_MEMORY = 0.98  # of the running mean that is reported
_FIRST_ROWS = 16  # sequences that a fresh head is levelled on


@dataclass(slots=True)
class Trained:
    """A head, and how far its training has come."""

    head: Head
    ids: Tensor  # [columns] int64 on the CPU, ascending
    step: int
    seconds: float  # of training, in all runs
    loss: float  # running mean
    losses: list[tuple[int, float]]  # (step, running mean) now and then


class Training:
    """One head in training."""

    def __init__(
        self,
        target: Target,
        corpus: Corpus,
        ids: Tensor,
        recipe: Recipe,
        state: Path | None,
        *,
        start: Head | None = None,
    ) -> None:
        """
        corpus  what is trained on
        ids     [columns] int64, the reduced vocabulary
        state   the file that runs continue from; None keeps none
        start   what is trained on, in place of a fresh head; its columns are `ids`
        """
        self._target, self._recipe, self._state = target, recipe, state
        self._ids = ids
        device = target.device
        self._lessons = Lessons(corpus, device, reach=recipe.unroll + 1)
        self._rows = target.tables.head_rows(ids.to(device))
        self._masks = Masks(device)
        head = (start or self._fresh()).to(device)
        self._optimizer = torch.optim.AdamW(
            head.parameters(),
            lr=recipe.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=recipe.weight_decay,
            fused=device.type == "cuda",
        )
        self._trained = Trained(head, ids, 0, 0.0, math.nan, [])
        self._mean = torch.zeros(())  # of the loss, on the device
        if state is not None and state.exists():
            self._resume(state)

    @property
    def trained(self) -> Trained:
        """The head as it is now."""
        return self._trained

    @property
    def recipe(self) -> Recipe:
        return self._recipe

    @property
    def finished(self) -> bool:
        return self._progress() >= 1

    def run(self, seconds: float, report: Report, *, until: int | None = None) -> Trained:
        """Train until the recipe is through, or for so many seconds, or until step `until`.

        The state, where it is kept, is on disk when it returns.
        """
        began = saved = time.monotonic()
        before = self._trained.seconds
        for chosen in self._order():
            now = time.monotonic()
            self._trained.seconds = before + now - began
            stopped = now - began > seconds or self._trained.step == until
            if stopped or self.finished:
                break
            self._step(self._lessons.cut(chosen))
            if self._trained.step == 1 or self._trained.step % 50 == 0:
                self._note()
                report("training", int(1000 * self._progress()), 1000)
            if now - saved > _SAVE_S:
                self._save()
                saved = now
        self._note()
        self._save()
        return self._trained

    def _progress(self) -> float:
        """0 to 1: the share of the steps, or of the minutes where no steps are given."""
        if self._recipe.steps is not None:
            return self._trained.step / self._recipe.steps
        return self._trained.seconds / (60 * self._recipe.minutes)

    def _order(self) -> Iterator[Chosen]:
        """All batches still to come, epoch after epoch."""
        passed, number = self._trained.step, 0
        while True:
            seed = self._recipe.seed + number
            batches = epoch(self._lessons.lengths, self._recipe.batch_tokens, seed)
            yield from batches[passed:]
            passed, number = max(passed - len(batches), 0), number + 1

    def _step(self, lesson: Lesson) -> None:
        trained, recipe = self._trained, self._recipe
        rate = recipe.learning_rate * min((trained.step + 1) / recipe.warmup, 1.0)
        rate *= 0.5 * (1 + math.cos(math.pi * min(self._progress(), 1.0)))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        goal, taps = self._goal(lesson)
        with self._autocast():
            loss = self._loss(lesson, goal, taps)
        torch.autograd.backward(loss)
        clip_grad_norm_(trained.head.parameters(), recipe.clip)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        trained.step += 1
        # stays on the device until somebody asks, so that nothing waits for it
        mean = loss.detach()
        self._mean = mean if trained.step == 1 else torch.lerp(mean, self._mean, _LOSS_MEMORY)

    def _goal(self, lesson: Lesson) -> tuple[Tensor, Tensor]:
        """What the target says of each predicted place, [n, columns], and its streams."""
        hidden, taps = self._target.read(lesson.tokens)
        before = hidden.flatten(0, 1)[lesson.places - 1]
        return (before.to(self._rows) @ self._rows.T).float().softmax(-1), taps

    def _loss(self, lesson: Lesson, goal: Tensor, taps: Tensor) -> Tensor:
        head, recipe = self._trained.head, self._recipe

        def embed(step: int, _: Tensor | None) -> Tensor:
            return self._target.tables.embed(lesson.tokens.roll(-1 - step, 1))

        total = torch.zeros((), device=goal.device)
        states = unroll(head, taps, embed, self._masks, steps=recipe.unroll)
        for step, state in enumerate(states):
            rows = state.flatten(0, 1)[lesson.places - 2 - step]
            total = total + recipe.decay**step * soft_cross_entropy(head.unembed(rows), goal)
        weights = sum(recipe.decay**step for step in range(recipe.unroll))
        return total / weights

    def _autocast(self) -> AbstractContextManager[object]:
        if self._target.device.type == "cuda":
            return torch.autocast("cuda", torch.bfloat16)
        return nullcontext()

    def _fresh(self) -> Head:
        shape = self._target.shape(len(self._ids))
        first = epoch(self._lessons.lengths, self._recipe.batch_tokens, self._recipe.seed)[0]
        tokens = self._lessons.cut(Chosen(first.sequences[:_FIRST_ROWS], first.width)).tokens
        ids = self._ids.to(self._target.device)
        return begin(shape, self._target.beginnings(ids, tokens), self._recipe.seed)

    def _note(self) -> None:
        trained = self._trained
        if trained.step:
            trained.loss = float(self._mean)
            trained.losses.append((trained.step, round(trained.loss, 4)))

    def _save(self) -> None:
        if self._state is None:
            return
        trained = self._trained
        state = {
            "head": trained.head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "ids": self._ids,
            "step": trained.step,
            "seconds": trained.seconds,
            "mean": self._mean,
            "losses": trained.losses,
            "recipe": self._recipe.as_json(),
        }
        buffer = BytesIO()
        torch.save(state, buffer)
        with replacing(self._state) as file:
            file.write(buffer.getbuffer())

    def _resume(self, path: Path) -> None:
        state = torch.load(path, map_location=self._target.device, weights_only=True)
        ours = {**self._recipe.as_json(), "minutes": None, "steps": None}
        if {**state["recipe"], "minutes": None, "steps": None} != ours or not torch.equal(
            state["ids"].cpu(), self._ids
        ):
            raise LoadError(
                f"{path} was begun with another recipe or vocabulary; remove it to start "
                "over, or go on as it began"
            )
        trained = self._trained
        trained.head.load_state_dict(state["head"])
        self._optimizer.load_state_dict(state["optimizer"])
        trained.step, trained.seconds = state["step"], state["seconds"]
        trained.losses, self._mean = list(state["losses"]), state["mean"]
