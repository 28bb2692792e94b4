"""What a linear-recurrent layer keeps, and what a forward of it hands back (spec 01 REC).

A refused draft should cost next to nothing, and a state that sums up the whole past cannot be
rewound. So a *round* (at most `WIDEST_ROUND` columns, with splits) keeps what it fed the layer
instead of the states in between: as many of these inputs as stand are *pending*, and the next write
folds them in before anything else (REC-5).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """State of a layer: the raw conv input tail and the delta state."""

    conv: Tensor  # [B, tail, channels], activation dtype
    delta: Tensor  # [B, value_heads, value_dim, key_dim], always float32


@dataclass(frozen=True, slots=True)
class RecurrentInputs:
    """What columns fed a layer: with the state before them, every state among them.

    All but the conv rows are float32, as the steps compute: a result that was rounded on the way
    here would lead to other states than the layer's own steps do.
    """

    conv: Tensor  # [B, L, channels] rows, raw, activation dtype
    keys: Tensor  # [B, L, key_heads, key_dim], normalised
    values: Tensor  # [B, L, value_heads, value_dim]
    decay: Tensor  # [B, L, value_heads]
    beta: Tensor  # [B, L, value_heads]


Fold = Callable[[Tensor, RecurrentInputs, int], Tensor]
"""The delta state after so many of the inputs, in a tensor of its own; the one before is only read.

To the last bit what the steps of the layer make of them (WID-4).
"""


@dataclass(frozen=True, slots=True)
class StateShape:
    """What a layer's state and its inputs look like, and where they live."""

    tail: int  # conv inputs kept: one less than the kernel's taps
    channels: int
    key_heads: int
    value_heads: int
    value_dim: int
    key_dim: int
    device: torch.device
    batch: int = 1  # sequences that advance in step
    dtype: torch.dtype | None = None  # of activations; None: the first `get` tells

    def zeros(self, dtype: torch.dtype) -> RecurrentState:
        conv = (self.batch, self.tail, self.channels)
        delta = (self.batch, self.value_heads, self.value_dim, self.key_dim)
        return RecurrentState(
            torch.zeros(conv, dtype=dtype, device=self.device),
            torch.zeros(delta, dtype=torch.float32, device=self.device),
        )


@dataclass(frozen=True, slots=True)
class RecurrentUpdate:
    """A forward's result for the cache.

    Laws
    1. `end` is each row's state after its `lengths[r]` real tokens: padding changes nothing.
    2. With `end` come the states at the splits, one each. Without it there are `inputs`, whose
       first `lengths[r]` columns count: both lead to the same states (REC-5).
    """

    end: RecurrentState | None
    lengths: tuple[int, ...]
    splits: tuple[RecurrentState, ...] = ()
    inputs: RecurrentInputs | None = None

    def of(self, tokens: int) -> "RecurrentUpdate":
        """The same of so many tokens a row; none of them undoes a write that has begun."""
        return replace(self, lengths=(tokens,) * len(self.lengths))


@dataclass(frozen=True, slots=True)
class RecurrentWrite:
    """A layer's part of a forward, between a cache's `begin_write` and the `put` that ends it.

    Laws
    1. The layer reads `before` and `pending`, and fills `folded` and the tensors of `update`. None
       of what it fills is among what it reads, so that a write can be undone.
    2. `before.conv` is the tail in front of the new rows. `before.delta` lacks the steps of
       `pending`, all of whose columns count: the layer takes them before its own.
    3. `folded` is where the delta state after `pending` belongs: there where `pending` is, and
       `update` wants inputs.
    4. `update` has tensors for `end` and for a state a split, or for `inputs`.
    5. Valid until `put`, for which whoever ends the write sets the lengths.
    """

    before: RecurrentState
    pending: RecurrentInputs | None
    folded: Tensor | None
    splits: tuple[int, ...]  # where states are due, counted from the forward's start
    update: RecurrentUpdate
