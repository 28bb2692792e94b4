"""From the hidden states of a text's tokens to one vector (spec 08 API-13).

The ways are those of sentence-transformers, whose configuration names them. Each takes rows chunk
by chunk, so that a long text's states are never all there at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Mode:
    """`part` makes [hidden] of rows [n, hidden] whose first one has this index in the text."""

    part: Callable[[Tensor, int], Tensor]
    join: Callable[[Tensor, Tensor], Tensor]
    divisor: Callable[[int], float] = lambda _: 1.0  # of the joined parts, by count of tokens


def _weighted(rows: Tensor, first: int) -> Tensor:
    """Later tokens count more, as they have seen more: SGPT, Muennighoff 2022, equation 2."""
    weights = torch.arange(first + 1, first + len(rows) + 1, device=rows.device)
    return (rows * weights[:, None].to(rows.dtype)).sum(0)


def _total(rows: Tensor, _: int) -> Tensor:
    return rows.sum(0)


MODES: Final[dict[str, _Mode]] = {
    "cls": _Mode(lambda rows, _: rows[0].clone(), lambda held, _: held),
    "max": _Mode(lambda rows, _: rows.amax(0), torch.maximum),
    "mean": _Mode(_total, torch.add, float),
    "mean_sqrt_len_tokens": _Mode(_total, torch.add, lambda count: count**0.5),
    "weightedmean": _Mode(_weighted, torch.add, lambda count: count * (count + 1) / 2),
    "lasttoken": _Mode(lambda rows, _: rows[-1].clone(), lambda _, new: new),
}


@dataclass(frozen=True, slots=True)
class Pooling:
    """Names among `MODES`; the vectors of several follow one another."""

    modes: tuple[str, ...] = ("mean",)

    def width(self, hidden_size: int) -> int:
        """Dimensions of a pooled vector."""
        return hidden_size * len(self.modes)


class Pool:
    """The running state of one text, in fp32."""

    def __init__(self, pooling: Pooling) -> None:
        self._modes = [MODES[name] for name in pooling.modes]
        self._parts: list[Tensor] = []
        self._count = 0

    def add(self, hidden: Tensor) -> None:
        """Take in rows [n, hidden] of the tokens that come next, n at least 1."""
        rows = hidden.float()
        new = [mode.part(rows, self._count) for mode in self._modes]
        if self._parts:
            both = zip(self._modes, self._parts, new, strict=True)
            new = [mode.join(held, part) for mode, held, part in both]
        self._parts, self._count = new, self._count + len(rows)

    def vector(self) -> Tensor:
        """[hidden * modes] of all rows so far."""
        parts = zip(self._modes, self._parts, strict=True)
        return torch.cat([part / mode.divisor(self._count) for mode, part in parts])
