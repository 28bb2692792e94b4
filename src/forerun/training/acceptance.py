"""How many drafts of a head a greedy target would accept, by their place in the chain.

Measured on text that the target wrote greedily: what follows a position there is what it would say,
so a chain of the head's own tokens is compared with it from every position at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add

import torch
from torch import Tensor

from forerun.base.json_types import JsonObject
from forerun.training.batches import Lesson, Lessons
from forerun.training.corpus import Corpus, epoch
from forerun.training.head import Head
from forerun.training.target import Target
from forerun.training.unroll import Masks, unroll


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Of each place in the chain: drafts accepted, and drafts whose forerunners all were."""

    accepted: tuple[int, ...]
    reached: tuple[int, ...]

    @property
    def rates(self) -> tuple[float, ...]:
        """Conditional acceptance by place."""
        pairs = zip(self.accepted, self.reached, strict=True)
        return tuple(accepted / max(reached, 1) for accepted, reached in pairs)

    @property
    def expected(self) -> tuple[float, ...]:
        """Tokens a round yields at each depth, the target's own one included."""
        found, product, total = [], 1.0, 1.0
        for rate in self.rates:
            product *= rate
            total += product
            found.append(total)
        return tuple(found)

    def plus(self, other: "Acceptance") -> "Acceptance":
        """Of both texts together."""
        return Acceptance(
            tuple(map(add, self.accepted, other.accepted)),
            tuple(map(add, self.reached, other.reached)),
        )

    def as_json(self) -> JsonObject:
        return {
            "acceptance": [round(rate, 4) for rate in self.rates],
            "tokens_a_round": [round(tokens, 3) for tokens in self.expected],
            "positions": self.reached[0] if self.reached else 0,
        }


def measure(
    target: Target, head: Head, ids: Tensor, corpus: Corpus, *, depth: int, batch_tokens: int
) -> Acceptance:
    """Over every token of `corpus` that the target wrote, with chains of `depth` drafts.

    ids  [columns] int64 target ids of the head's columns
    """
    lessons = Lessons(corpus, target.device, reach=2)
    masks, device_ids = Masks(target.device), ids.to(target.device)
    totals = torch.zeros(2, depth, dtype=torch.int64)
    with torch.no_grad():
        for chosen in epoch(corpus.lengths, batch_tokens, 0):
            totals += _counts(target, head, device_ids, lessons.cut(chosen), (masks, depth)).cpu()
    return Acceptance(tuple(totals[0].tolist()), tuple(totals[1].tolist()))


def _counts(
    target: Target, head: Head, ids: Tensor, lesson: Lesson, how: tuple[Masks, int]
) -> Tensor:
    """[2, depth]: accepted and reached."""
    masks, depth = how
    width = lesson.tokens.shape[1]
    own = torch.zeros_like(lesson.tokens, dtype=torch.bool).flatten()
    own[lesson.places] = True
    own = own.view_as(lesson.tokens)
    drafts: list[Tensor] = []

    def embed(step: int, _: Tensor | None) -> Tensor:
        if not step:
            return target.tables.embed(lesson.tokens.roll(-1, 1))
        return target.tables.embed(drafts[-1])

    alive = torch.ones_like(own)
    counts: Sequence[list[Tensor]] = ([], [])
    _, taps = target.read(lesson.tokens)
    for step, state in enumerate(unroll(head, taps.float(), embed, masks, steps=depth)):
        drafts.append(ids[head.unembed(state).argmax(-1)])
        said = lesson.tokens.roll(-2 - step, 1)
        there = own.roll(-2 - step, 1)
        there[:, max(width - 2 - step, 0) :] = False
        reached = alive & there
        alive = reached & (drafts[-1] == said)
        counts[0].append(alive.sum())
        counts[1].append(reached.sum())
    return torch.stack([torch.stack(part) for part in counts])
