"""The tokens that penalties look back on: one ring a slot, pooled in one matrix (SLT-2..6).

Token number t of a slot lies in column t % capacity of its row, so the matrix keeps its shape from
step to step (concatenating and cutting it moved memory and changed captured shapes).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Window:
    """The tokens that some rows of scores look back on, in no order."""

    ids: Tensor  # [rows, width] int64
    live: Tensor | None  # [rows, width] bool, False where a place holds no token; None: all do


@dataclass(slots=True)
class _Ring:
    capacity: int
    length: int = 0  # tokens ever written; grows without bound

    @property
    def filled(self) -> int:
        return min(self.length, self.capacity)


class PenaltyHistory:
    """Rows are addressed by their place in order of registration, as `add` made them."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self.pool: Tensor | None = None  # [rows, largest capacity] int64
        self._rings: list[_Ring] = []

    def add(self, capacity: int, prior: Sequence[int]) -> None:
        """A last row, holding the end of `prior`. Capacity 0: the row is never read."""
        self._rings.append(_Ring(capacity))
        if self.pool is not None or capacity:
            self._reshape(len(self._rings), max(capacity, self._width))
        self.extend(len(self._rings) - 1, _last(prior, capacity))

    def remove(self, row: int) -> None:
        """Drop a row; those after it move up. Without rows there is no matrix."""
        del self._rings[row]
        if not self._rings:
            self.pool = None
        elif self.pool is not None:
            self.pool = torch.cat([self.pool[:row], self.pool[row + 1 :]])

    def length(self, row: int) -> int:
        """Tokens that a row's window holds."""
        return self._rings[row].filled

    def tokens(self, row: int) -> list[int]:
        """Those tokens, the oldest first. Waits for the device."""
        ring = self._rings[row]
        if self.pool is None or not ring.filled:
            return []
        held: list[int] = self.pool[row, : ring.filled].tolist()
        oldest = ring.length % ring.filled  # 0 until the ring is full
        return held[oldest:] + held[:oldest]

    def counts(self, row: int) -> Counter[int]:
        """How often each token occurs among them. Waits for the device."""
        return Counter(self.tokens(row))

    def counts_along(self, row: int, drafts: Sequence[int], rows: int) -> list[Counter[int]]:
        """How often each token occurs in what `chain` looks back on. Waits for the device."""
        seen, capacity = [*self.tokens(row), *drafts], self._rings[row].capacity
        ends = range(len(seen) - rows + 1, len(seen) + 1)
        return [Counter(seen[max(0, end - capacity) : end]) for end in ends]

    def append(self, rows: Sequence[int], tokens: Tensor) -> None:
        """One token a row, [len(rows)] int64 on the device, in one scatter."""
        places, kept = [], []
        for number, row in enumerate(rows):
            ring = self._rings[row]
            if ring.capacity:
                places.append(row * self._width + ring.length % ring.capacity)
                kept.append(number)
                ring.length += 1
        if not places or self.pool is None:
            return
        if len(kept) < len(rows):
            tokens = tokens[to_device(kept, self.device)]
        self.pool.view(-1).put_(to_device(places, self.device), tokens)

    def extend(self, row: int, tokens: Sequence[int]) -> None:
        """Several tokens of one row; only the last `capacity` of them are written (SLT-6)."""
        ring = self._rings[row]
        kept = _last(tokens, ring.capacity)
        if not kept or self.pool is None:
            return
        outside = [token for token in kept if not 0 <= token < self.vocab_size]
        assert not outside, f"tokens {outside[:3]} are outside a vocabulary of {self.vocab_size}"
        ring.length += len(tokens)
        values = to_device(kept, self.device)
        begin = (ring.length - len(kept)) % ring.capacity
        upper = min(len(kept), ring.capacity - begin)
        self.pool[row, begin : begin + upper] = values[:upper]
        self.pool[row, : len(kept) - upper] = values[upper:]

    def window(self, rows: Sequence[int]) -> Window | None:
        """What the given rows look back on; None where none of them holds a token."""
        filled = [self._rings[row].filled for row in rows]
        width = max(filled, default=0)
        if self.pool is None or not width:
            return None
        whole = list(rows) == list(range(len(self.pool)))
        chosen = self.pool if whole else self.pool[to_device(rows, self.device)]
        ids = chosen[:, :width]
        if min(filled) == width:
            return Window(ids, None)
        column = torch.arange(width, device=self.device)
        return Window(ids, column < to_device(filled, self.device)[:, None])

    def chain(self, row: int, drafts: Tensor, rows: int) -> Window | None:
        """The window of `rows` scores along a chain of drafts, aligned at the end (DST-2, DST-4).

        Row i looks back on the history followed by drafts[: len(drafts) - rows + 1 + i]; nothing
        is written. drafts [depth] int64.
        """
        ring = self._rings[row]
        depth = drafts.shape[0]
        width = min(ring.capacity, ring.length + depth)
        if self.pool is None or not width:
            return None
        held = self.pool[row, :width]
        if not depth:
            return Window(held.expand(rows, width), None)
        column = torch.arange(width, device=self.device)
        seen = torch.arange(depth - rows + 1, depth + 1, device=self.device)[:, None] + ring.length
        # The number of the last token that fell into each column; negative where none did.
        number = seen - 1 - (seen - 1 - column) % ring.capacity
        drafted = drafts[(number - ring.length).clamp_min(0)]
        return Window(torch.where(number < ring.length, held, drafted), number >= 0)

    @property
    def _width(self) -> int:
        return 0 if self.pool is None else self.pool.shape[1]

    def _reshape(self, rows: int, width: int) -> None:
        pool = torch.zeros(rows, width, dtype=torch.int64, device=self.device)
        if self.pool is not None:
            pool[: self.pool.shape[0], : self.pool.shape[1]] = self.pool
        self.pool = pool


def to_device(values: Sequence[int], device: torch.device) -> Tensor:
    """Host integers as an int64 tensor, without making the host wait for the device."""
    return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)


def _last(tokens: Sequence[int], count: int) -> Sequence[int]:
    return tokens[len(tokens) - min(count, len(tokens)) :]  # [-0:] would be all of them
