"""Prompts that the target writes itself: given its template up to where a user speaks, it goes on.

The method of Magpie (Xu et al. 2024, https://arxiv.org/abs/2406.08464). What comes out is as varied
as what the target was tuned on.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from forerun.base.paths import replacing
from forerun.training.corpus import read_corpus, shards
from forerun.training.encoded import EncodedPrompts, join
from forerun.training.generation import Budget, write_corpus
from forerun.training.recipe import Report, Writing
from forerun.training.target import Target

SHORTEST, LONGEST = 4, 96  # tokens of a user's turn
FOLLOWED = 1 / 3  # of the prompts have a second turn


@dataclass(frozen=True, slots=True)
class Openings:
    """What stands around a user's turn, as tokens."""

    starts: list[list[int]]  # all that comes before it; the first as the template alone has it
    closing: list[int]  # from its end to where the answer begins
    follow_ups: list[list[int]]  # from the end of the answer to where the next one begins
    eos: list[int]


def write_openings(path: Path, openings: Openings) -> None:
    with replacing(path) as file:
        file.write(json.dumps(asdict(openings)).encode())


def read_openings(path: Path) -> Openings:
    return Openings(**json.loads(path.read_bytes()))


@dataclass(frozen=True, slots=True)
class Asking:
    """How many turns are written at most, for how long, and where they are kept meanwhile."""

    count: int
    seconds: float
    folder: Path
    rows: int
    seed: int


def write_self_prompts(
    target: Target, openings: Openings, asking: Asking, report: Report
) -> EncodedPrompts:
    """Turns that ended, are neither very short nor long, and are all different.

    Each is put where the template alone would have it, whatever it was written after. None are
    found where the template ends a turn with no token that the target would write.
    """
    starts, end = openings.starts, openings.closing[0]
    eos = frozenset({end, *openings.eos})
    chosen = [starts[number % len(starts)] for number in range(asking.count)]
    writing = Writing(
        rows=asking.rows,
        capacity=max(map(len, starts)) + LONGEST + 2,
        answer=LONGEST + 1,
        temperature=1.0,
        greedy=0.0,
        least=SHORTEST,
    )
    write_corpus(
        target,
        join([(start, []) for start in chosen], eos),
        asking.folder,
        writing=writing,
        budget=Budget(10**9, asking.seconds),
        seed=asking.seed,
        report=report,
    )
    marks = {starts[0][0], *eos}
    turns = [turn for turn in _turns(asking.folder, end) if not marks & {*turn}]
    chance = random.Random(asking.seed)
    return join([_prompt(openings, turn, chance) for turn in dict.fromkeys(turns)], eos)


def _turns(folder: Path, end: int) -> Iterator[tuple[int, ...]]:
    """What was written in place of a user and ended, in the order of its numbers."""
    if not shards(folder):
        return
    corpus = read_corpus(folder)
    parts = torch.split(corpus.tokens, corpus.lengths.tolist())
    own = torch.split(corpus.own, corpus.lengths.tolist())
    for place in corpus.items.argsort().tolist():
        *turn, last = parts[place][own[place]].tolist()
        if last == end and SHORTEST <= len(turn) <= LONGEST:
            yield tuple(turn)


def _prompt(
    openings: Openings, turn: Sequence[int], chance: random.Random
) -> tuple[list[int], list[int]]:
    followed = openings.follow_ups and chance.random() < FOLLOWED
    further = chance.choice(openings.follow_ups) if followed else []
    return [*openings.starts[0], *turn, *openings.closing], further
