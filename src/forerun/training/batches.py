"""A corpus on the training device, and what a step of training takes from it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.training.corpus import Chosen, Corpus


@dataclass(frozen=True, slots=True)
class Lesson:
    """One batch. Rows of `places` name the tokens that the target wrote: those are predicted."""

    tokens: Tensor  # [B, L] int64, padded with zeros
    places: Tensor  # [n] int64 into the flattened batch, of tokens that have `reach` before them


class Lessons:
    """Cuts batches out of a corpus that lies on the device."""

    def __init__(self, corpus: Corpus, device: torch.device, reach: int) -> None:
        """reach: tokens that must stand before a predicted one, one more than a chain's steps."""
        self.lengths = corpus.lengths
        self._corpus, self._reach = corpus, reach
        self._tokens = corpus.tokens.to(device)
        self._starts = corpus.starts
        self._device = device

    def cut(self, chosen: Chosen) -> Lesson:
        """The batch of these sequences."""
        width = chosen.width
        column = torch.arange(width)
        inside = column < self.lengths[chosen.sequences, None]
        where = (self._starts[chosen.sequences, None] + column).where(inside, 0)
        own = self._corpus.own[where] & inside
        own[:, : self._reach] = False
        places = self._sent(own.flatten().nonzero()[:, 0])
        tokens = self._tokens[self._sent(where)].long()
        return Lesson(tokens * self._sent(inside), places)

    def _sent(self, values: Tensor) -> Tensor:
        """To the device without waiting for what it is at."""
        if self._device.type == "cuda":
            return values.pin_memory().to(self._device, non_blocking=True)
        return values
