"""Quantised weights of a checkpoint, put together from their parts, and stacks of experts.

A stack is stored as [experts, rows, columns] and is the weight [experts * rows, columns] from here
on: expert e is rows [e * rows, (e + 1) * rows).
"""

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from forerun.base.errors import LoadError
from forerun.models.tensor_files import Stored
from forerun.quant.formats import QuantFormat
from forerun.quant.packed import PackedWeight
from forerun.quant.resolve import resolve
from forerun.quant.stored import packed_weight, stored_shapes

SCALE, ZERO_POINTS = "_scale", "_qbias"  # after `p.weight` (LIN-1)
GLOBAL_SCALES = (".global_scale", "_scale_2")
PARTS = ("", SCALE, ZERO_POINTS, *GLOBAL_SCALES)


class Parts(Protocol):
    """The tensors of a model that nobody has picked yet."""

    def __contains__(self, name: str) -> bool: ...

    def stored(self, name: str) -> Stored:
        """Raises LoadError where there is none."""
        ...

    def part(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Picks it: as stored, on the model's device. Raises LoadError for another shape."""
        ...


def read_packed(
    parts: Parts, name: str, shape: tuple[int, ...], config: Mapping[str, object]
) -> PackedWeight:
    """The quantised weight `name`; its parts stay as stored (LIN-1, LIN-2).

    shape  [rows, columns], or of a stack [experts, rows, columns]
    """
    words, scale = parts.stored(name), parts.stored(name + SCALE)
    columns = words.row, scale.row
    form = resolve(name, columns, metadata=words.quantisation, config=config)
    has_points = name + ZERO_POINTS in parts
    _check(name, form, words, scale, has_points)
    *stack, rows, width = shape
    shapes = stored_shapes(rows, width, form)
    words_shape, groups_shape = (*stack, *shapes.words), (*stack, *shapes.groups)
    zero_points = None
    if has_points:
        zero_points = parts.part(name + ZERO_POINTS, groups_shape).flatten(0, -2)
    return packed_weight(
        parts.part(name, words_shape).flatten(0, -2),
        parts.part(name + SCALE, groups_shape).flatten(0, -2),
        zero_points,
        form,
        global_scale=_global_scale(parts, name, shape[:-1]),
    )


def _check(name: str, form: QuantFormat, words: Stored, scale: Stored, has_points: bool) -> None:
    """What a format has beside its shapes."""
    if words.read().dtype != torch.uint32:
        raise LoadError(f"quantised tensor {name} must hold 32-bit words; import it again")
    scales = scale.read()
    if scales.is_floating_point() != form.affine or scales.dtype.itemsize > 4:
        raise LoadError(
            f"quantised tensor {name} is {form.name}, which has no {scales.dtype} scales; "
            "import it again"
        )
    if has_points and not form.affine:
        raise LoadError(
            f"quantised tensor {name} is {form.name} and has zero points; import it again"
        )


def _global_scale(parts: Parts, name: str, rows: tuple[int, ...]) -> Tensor | None:
    """One number, or one a row; a stack may have one an expert (LIN-4).

    rows  [rows], or of a stack [experts, rows]
    """
    for part in GLOBAL_SCALES:
        if name + part not in parts:
            continue
        found = parts.stored(name + part).shape
        served = {(), (1,), rows[:-1], rows, (math.prod(rows),)}
        scale = parts.part(name + part, found if found in served else ()).float()
        if scale.numel() == 1:
            return scale.reshape(())
        if found == rows[:-1]:
            return scale.repeat_interleave(rows[-1])
        return scale.flatten()
    return None
