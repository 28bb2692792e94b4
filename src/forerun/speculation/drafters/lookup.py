"""Drafts what followed the last time that the text ended as it does now (spec 03 LKP)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from forerun.contract.cache import LayerCache
from forerun.contract.drafter import DraftRequest, DraftSession, Proposal
from forerun.contract.media import MediaItem
from forerun.sampling.distribution import Distribution
from forerun.speculation.suffix_index import SuffixIndex

_CPU = torch.device("cpu")


class LookupDrafter:
    """Without weights and caches it serves every model; it keeps nothing of a request (LKP-1)."""

    name = "lookup"
    caches: Sequence[LayerCache | None] = ()
    look_ahead = 0
    draft_limit = 0
    grades = 4  # a suffix of the shortest length, twice, four and eight times as long, or longer
    needs_rows = False

    def __init__(self, *, shortest: int = 3, device: torch.device = _CPU) -> None:
        """
        shortest  tokens that must agree: fewer are seldom followed by the same (LKP-3)
        device    where proposals are verified
        """
        self._shortest, self._device = shortest, device

    def open(self, request: DraftRequest) -> DraftSession:
        return LookupSession(request, self._shortest, self._device)


class LookupSession:
    """One request's text: the prompt, then each run that is committed, and the current token.

    Every position of media is a token of its own, below 0: it occurs once, so that no suffix
    reaches into media, and no proposal goes on there.
    """

    def __init__(self, request: DraftRequest, shortest: int, device: torch.device) -> None:
        self._shortest, self._index = shortest, SuffixIndex(shortest)
        self._index.extend(_without_media(request))
        self._index.catch_up()  # a round's time is what its depth is judged by (DEP-3)
        self._device = device
        self._frontier: int | None = None  # position after the last reported token

    def committed(
        self,
        tokens: Sequence[int],
        conditioning: Tensor | None,
        position: int,
        media: Sequence[MediaItem] = (),
    ) -> None:
        del conditioning, media
        held = len(self._index.tokens)
        assert self._frontier in (None, position), (
            f"tokens reported from {position}, the last ones ended at {self._frontier}"
        )
        assert position <= held, f"tokens reported from {position}, only {held} are known"
        self._frontier = position + len(tokens)
        self._index.extend(tokens[held - position :])

    def settle(self, next_token: int) -> None:
        """Nothing waits to be written."""

    def grade(self, current: int) -> int | None:
        """By the length of the suffix: what agreed for longer goes on agreeing more often."""
        self._take_in(current)
        if self._index.earlier() is None:
            return None
        times = self._index.agreeing // self._shortest
        return min(times.bit_length(), LookupDrafter.grades) - 1

    def propose(self, current: int, most: int) -> Proposal | None:
        if most <= 0:
            return None
        self._take_in(current)
        drafts = _before_media(self._index.continuation(most))
        if not drafts:
            return None
        tokens = torch.tensor(drafts, dtype=torch.int64).to(self._device, non_blocking=True)
        # each was certain (LKP-4)
        rows = Distribution(torch.ones(len(drafts), 1, device=self._device), tokens[:, None])
        return Proposal(tokens, rows, tuple(drafts))

    def _take_in(self, current: int) -> None:
        index = self._index
        if self._frontier == len(index.tokens):
            index.extend((current,))
        assert index.tokens[-1] == current, f"{current} is current, {index.tokens[-1]} was reported"

    def close(self) -> None:
        """Nothing to write, and the session ends with its request (LKP-2)."""


def _without_media(request: DraftRequest) -> Sequence[int]:
    tokens = list(request.prompt)
    for start, end in request.media:
        tokens[start:end] = range(-start - 1, -end - 1, -1)
    return tokens


def _before_media(tokens: list[int]) -> list[int]:
    for place, token in enumerate(tokens):
        if token < 0:
            return tokens[:place]
    return tokens
