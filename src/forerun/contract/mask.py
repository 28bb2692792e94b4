"""The algebra of logical attention masks (spec 01 MSK).

A mask says which positions a query may see, in positions of the sequence and not in columns of a
buffer. Causality and rectangles stay symbolic as long as they can, so that dispatch keeps to the
fast kernels.

Laws (`tests/laws`)
1. `intersect` means AND: a pair (query, key) is visible under it iff visible under both sides.
   So rectangles that meet a plain causal mask vanish.
2. `NONE` is the identity of `intersect`; it is commutative and associative.
3. `relax` means OR with its rectangles, within the mask's tensor where it has one, and returns
   the same mask where they add nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rect:
    """Queries `[query_low, query_high)` of sequence `row` may see keys `[key_low, key_high)`."""

    row: int
    query_low: int
    query_high: int
    key_low: int
    key_high: int

    @property
    def empty(self) -> bool:
        return self.query_low >= self.query_high or self.key_low >= self.key_high

    @property
    def causal_already(self) -> bool:
        return self.key_high - 1 <= self.query_low

    def meet(self, other: "Rect") -> "Rect":
        assert self.row == other.row, (self.row, other.row)
        return Rect(
            self.row,
            max(self.query_low, other.query_low),
            min(self.query_high, other.query_high),
            max(self.key_low, other.key_low),
            min(self.key_high, other.key_high),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """None of it set: everything is visible. `tensor` [B or 1, 1, L, K] bool, True = attend.

    The tensor's columns are the positions 0, 1, ... K-1 of the sequence (logical columns).
    """

    causal: bool = False
    rects: tuple[Rect, ...] = ()
    tensor: Tensor | None = None

    @property
    def key(self) -> tuple[bool, tuple[Rect, ...], int | None]:
        """Equal for masks that mean the same thing by construction; tensors by identity."""
        return (self.causal, self.rects, None if self.tensor is None else id(self.tensor))


NONE = Mask()
CAUSAL = Mask(causal=True)


def relax(mask: Mask, rects: Sequence[Rect]) -> Mask:
    """`mask` with `rects` made visible too. Raises ValueError for a mask that is not causal."""
    useful = tuple(rect for rect in rects if not rect.empty and not rect.causal_already)
    if not mask.causal:
        raise ValueError("only a causal mask can be relaxed")
    return Mask(True, mask.rects + useful, mask.tensor) if useful else mask


def intersect(one: Mask, other: Mask) -> Mask:
    """The mask under which a pair is visible iff both sides say so (MSK-3)."""
    tensor = one.tensor
    if tensor is None:
        tensor = other.tensor
    elif other.tensor is not None:
        tensor = tensor & other.tensor
    return Mask(one.causal or other.causal, _common_rects(one, other), tensor)


def _common_rects(one: Mask, other: Mask) -> tuple[Rect, ...]:
    if one.causal and other.causal:
        pairs = (a.meet(b) for a in one.rects for b in other.rects if a.row == b.row)
        return tuple(rect for rect in pairs if not rect.empty and not rect.causal_already)
    return one.rects + other.rects  # the side that is not causal has none


def visible(mask: Mask, positions: Tensor, columns: Tensor) -> Tensor:
    """Lay a logical mask over columns that hold any positions (MSK-4).

    positions  [B, L] int64 of the queries
    columns    [B or 1, K] int64, the position that each column holds
    returns    [B, 1, L, K] bool, True = attend
    """
    query, key = positions[:, :, None], columns[:, None, :]
    seen = torch.ones_like(query == key)
    if mask.causal:
        seen = key <= query
    for rect in mask.rects:
        inside = (query >= rect.query_low) & (query < rect.query_high)
        inside = inside & (key >= rect.key_low) & (key < rect.key_high)
        seen[rect.row] |= inside[rect.row]
    seen = seen[:, None]
    if mask.tensor is not None:
        seen = seen & _gathered(mask.tensor, columns)
    return seen


def _gathered(tensor: Tensor, columns: Tensor) -> Tensor:
    """A logical tensor mask, by the positions its columns have in a buffer."""
    width = tensor.shape[-1]
    assert width == 1 or int(columns.max()) < width, "a mask narrower than what it masks"
    if width == 1:
        return tensor
    rows = max(tensor.shape[0], columns.shape[0])
    index = columns.clamp_min(0)[:, None, None, :].expand(rows, 1, tensor.shape[2], -1)
    return tensor.expand(rows, -1, -1, -1).gather(-1, index)
