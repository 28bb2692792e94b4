"""Projections, and those made up of parts in several formats."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from forerun.nn.linear import Linear
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
