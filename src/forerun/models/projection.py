"""Projections whose weights are parts of what is stored, or made up of several parts."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from forerun.nn.linear import Linear, LinearWeights
from forerun.quant.packed import PackedWeight, Weight, fusable


class Projection(Protocol):
    """What a model needs of a linear."""

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]; the result is the caller's own."""
        ...

    @property
    def nbytes(self) -> int: ...


class SideBySide:
    """Linears of the same input, their outputs joined.

    Imports promote values and keys to more bits than queries (07 POL-5), and widening the rest to
    match would cost what quantising them won.
    """

    def __init__(self, parts: Sequence[Linear]) -> None:
        self._parts = tuple(parts)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self._parts], -1)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)


def chosen_rows(part: LinearWeights, which: slice | Tensor) -> LinearWeights:
    """Some of the outputs of a linear: views for a slice, copies for int64 indices."""
    weight = part.weight
    rows = weight.rows(which) if isinstance(weight, PackedWeight) else weight[which]
    return LinearWeights(rows, None if part.bias is None else part.bias[which])


def stack_parts(stack: LinearWeights, count: int) -> list[LinearWeights]:
    """The equal parts of a stack, as views."""
    rows = stack.weight.shape[0] // count
    return [chosen_rows(stack, slice(at * rows, (at + 1) * rows)) for at in range(count)]


def fusable_runs(weights: Sequence[Weight]) -> list[int]:
    """How many neighbours can be fused each time, in order: [1, 2] for int4, int8, int8."""
    runs: list[int] = []
    for index, weight in enumerate(weights):
        if index and _alike(weights[index - 1], weight):
            runs[-1] += 1
        else:
            runs.append(1)
    return runs


def _alike(one: Weight, other: Weight) -> bool:
    if isinstance(one, PackedWeight) and isinstance(other, PackedWeight):
        return fusable([one, other])
    return isinstance(one, Tensor) and isinstance(other, Tensor)
