"""A chain of drafts from every position of a batch at once.

Base t is the pair of the target's streams at t and the token at t + 1. Step j of base t stands at
position t + j, is fed what step j - 1 made and the token at t + 1 + j, and proposes the token at
t + 2 + j. It attends over the pairs of the text up to t, and over its own earlier steps: exactly
what a drafter's cache holds then, since the drafts of other rounds are gone.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from forerun.training.head import Head

Embed = Callable[[int, Tensor | None], Tensor]
"""Embeddings [B, L, hidden] of the tokens of a step, which the step before's streams may decide."""


@dataclass(slots=True)
class Masks:
    """Who attends over whom, by step and width. Made once each."""

    device: torch.device
    _made: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def of(self, step: int, width: int) -> Tensor:
        """[1, 1, L, (step + 1) * L] bool: the text up to the base, then its own earlier steps."""
        key = (step, width)
        if key not in self._made:
            every = torch.ones(width, width, dtype=torch.bool, device=self.device)
            own = torch.eye(width, dtype=torch.bool, device=self.device)
            self._made[key] = torch.cat((every.tril(), *[own] * step), 1)[None, None]
        return self._made[key]


def unroll(head: Head, taps: Tensor, embed: Embed, masks: Masks, *, steps: int) -> Iterator[Tensor]:
    """The residual streams [B, L, hidden] of each step, before the last norm.

    taps  [B, L, taps * hidden] of the text's own positions
    """
    layer, width = head.layer, taps.shape[1]
    state, seen = head.condition(taps), None
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for step in range(steps):
        queries, new_keys, new_values = layer.project(embed(step, seen), state)
        turn = rotation(head, torch.arange(step, step + width, device=taps.device), queries.dtype)
        groups = head.shape.heads // head.shape.kv_heads
        keys.append(rotate(new_keys, turn).repeat_interleave(groups, 1))
        values.append(new_values.repeat_interleave(groups, 1))
        attended = functional.scaled_dot_product_attention(
            rotate(queries, turn),
            torch.cat(keys, 2),
            torch.cat(values, 2),
            attn_mask=masks.of(step, width),
        )
        state = seen = layer.finish(state, attended)
        yield state


Rotation = tuple[Tensor, Tensor]


def rotation(head: Head, positions: Tensor, dtype: torch.dtype) -> Rotation:
    """Cosines and signed sines [L, D] of positions [L]."""
    dim = head.shape.head_dim
    steps = torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device) / dim
    angles = positions[:, None] * head.shape.rope_theta**-steps
    sines = angles.sin()
    return angles.cos().repeat(1, 2).to(dtype), torch.cat((-sines, sines), -1).to(dtype)


def rotate(x: Tensor, turn: Rotation) -> Tensor:
    """Turn pairs (i, i + D / 2) of the heads of x [B, heads, L, D]."""
    cosines, sines = turn
    return x * cosines + torch.roll(x, x.shape[-1] // 2, -1) * sines
