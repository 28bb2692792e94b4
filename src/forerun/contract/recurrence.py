"""What a linear-recurrent layer keeps, and what a forward of it hands back (spec 01 REC)."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class RecurrentState:
    """State of a layer: the raw conv input tail and the delta state."""

    conv: Tensor  # [B, tail, channels], activation dtype
    delta: Tensor  # [B, value_heads, value_dim, key_dim], always float32


@dataclass(frozen=True, slots=True)
class RecurrentInputs:
    """What a forward of L columns fed a layer: with the state before it, every state inside it."""

    conv: Tensor  # [B, L, channels] rows, raw
    keys: Tensor  # [B, L, key_heads, key_dim]
    values: Tensor  # [B, L, value_heads, value_dim]
    decay: Tensor  # [B, L, value_heads] float32
    beta: Tensor  # [B, L, value_heads]


@dataclass(frozen=True, slots=True)
class RecurrentUpdate:
    """A forward's result for the cache.

    Laws
    1. `end` is each row's state after its `lengths[r]` real tokens: padding changes nothing.
    2. The states at the splits come in `splits`, one each, or can be computed from `inputs`: a
       layer brings one of the two where there are splits. Both give the same snapshots (REC-5).
    """

    end: RecurrentState
    lengths: tuple[int, ...]
    splits: tuple[RecurrentState, ...] = ()
    inputs: RecurrentInputs | None = None


@dataclass(frozen=True, slots=True)
class RecurrentWrite:
    """A layer's part of a forward whose writes somebody else has begun (`Batch.writes`).

    The layer reads `before` and fills the tensors of `update`, all of them at addresses that stay
    while `generation` does; `update.end` may be `before` itself. Valid until `put`, for which the
    driver sets the lengths.
    """

    before: RecurrentState
    splits: tuple[int, ...]  # where states are due, counted from the forward's start
    update: RecurrentUpdate
