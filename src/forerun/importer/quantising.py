"""Values to quantised parts while they stream by: what a slab of rows yields, in the blob's order.

The words of a weight come first in its blob and are written slab by slab; scales, zero points and
global scales, some hundredths of the source, are held until the last word is written. Rows are
quantised independently, so the size of a slab changes nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.base.errors import ImportFailedError
from forerun.importer.plan import TensorPlan
from forerun.importer.reading import read_rows, read_whole
from forerun.importer.source_tensors import SourceTensor
from forerun.importer.write import Part, part
from forerun.quant.codec import quantise
from forerun.quant.formats import QuantFormat
from forerun.quant.parts import stored_parts
from forerun.store.headers import TensorEntry

Numbers = NDArray[Any]
Slabs = Callable[[], Iterator[Tensor]]  # [n, columns] values, in order; asked for once

BLOCK = 128  # rows and columns that share a scale in 8-bit floats (PRQ-4)
_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
}


def quantised_parts(plan: TensorPlan, slabs: Slabs) -> tuple[Part, ...]:
    """The parts of one weight (PLN-5). Its values are read when the first part's chunks are."""
    form = QuantFormat(plan.kind, plan.group)
    *rows, columns = plan.shape
    words = (*rows, columns * form.bits // 32)
    groups = (*rows, columns // form.group)
    held: dict[str, list[Numbers]] = {".scale": [], ".bias": [], ".global_scale": []}

    def small(suffix: str, dtype: str, shape: tuple[int, ...]) -> Part:
        return part(plan.name + suffix, dtype, shape, held[suffix])

    parts = [part(plan.name, "U32", words, _words(plan, form, slabs, held))]
    parts.append(small(".scale", "F16" if form.affine else "U8", groups))
    if form.affine:
        parts.append(small(".bias", "F16", groups))
    elif form.name == "nvfp4":
        parts.append(small(".global_scale", "F32", (prod(rows),)))
    return tuple(parts)


def _words(
    plan: TensorPlan, form: QuantFormat, slabs: Slabs, held: dict[str, list[Numbers]]
) -> Iterator[Numbers]:
    """The words of slab after slab; the slab's other parts are put into `held`."""
    for slab in slabs():
        try:
            parts = stored_parts(quantise(slab, form))
        except ImportFailedError as error:
            raise ImportFailedError(f"tensor {plan.source}: {error}") from None
        words = parts.pop("")
        for suffix, values in parts.items():
            held[suffix].append(values.numpy())
        yield words.numpy()


def slabs_of(arrays: Iterable[NDArray[np.float32]]) -> Iterator[Tensor]:
    """Arrays of values as tensors; no copies."""
    for array in arrays:
        yield torch.from_numpy(array)


def folder_values(sources: Iterable[SourceTensor]) -> Iterator[Tensor]:
    """The values of a folder's weights, one after the other, in slabs of rows."""
    for source in sources:
        yield from _scaled(source, source.scale) if source.scale else _slabs(source.values)


def _slabs(entry: TensorEntry) -> Iterator[Tensor]:
    for rows in read_rows(entry):
        yield torch.from_numpy(rows).view(_DTYPES[entry.dtype])


def _scaled(source: SourceTensor, scale: TensorEntry) -> Iterator[Tensor]:
    """8-bit floats times the scales of their blocks, rounded to bfloat16 (PRQ-4)."""
    blocks = torch.from_numpy(read_whole(scale)).view(_DTYPES[scale.dtype])
    blocks = blocks.view(-1, scale.shape[-1]).float()
    rows, columns = source.shape[-2:]
    first = 0
    for slab in _slabs(source.values):
        index = torch.arange(first, first + len(slab))
        first += len(slab)
        block = index // rows * -(-rows // BLOCK) + index % rows // BLOCK  # of a stack's matrices
        factors = blocks[block].repeat_interleave(BLOCK, dim=1)[:, :columns]
        yield (slab.float() * factors).bfloat16()


def bfloat16_chunks(slabs: Iterator[Tensor]) -> Iterator[NDArray[np.uint16]]:
    """bfloat16 slabs as their bits."""
    for slab in slabs:
        yield slab.view(torch.uint16).numpy()
