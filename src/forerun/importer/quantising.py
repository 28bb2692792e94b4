"""Values to quantised parts while they stream by: what a slab of rows yields, in the blob's order.

The words of a weight come first in its blob and are written slab by slab; scales, zero points and
global scales, some hundredths of the source, are held until the last word is written. Rows are
quantised independently, so the size of a slab changes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forerun.base.errors import ImportFailedError
from forerun.importer.classification import BLOCK, E4M3
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

SLAB_BYTES = 1 << 20  # of the source; quantising takes some tens of times as much for a moment
_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
    E4M3: torch.float8_e4m3fn,
}


def quantised_parts(plan: TensorPlan, slabs: Slabs) -> tuple[Part, ...]:
    """The parts of one weight (PLN-5). Its values are read when the first part's chunks are."""
    form = QuantFormat(plan.kind, plan.group)
    *rows, columns = plan.shape
    words = (*rows, columns * form.bits // 32)
    groups = (*rows, columns // form.group)
    small = {".scale": ("F16" if form.affine else "U8", groups)}
    if form.affine:
        small[".bias"] = ("F16", groups)
    elif form.name == "nvfp4":
        small[".global_scale"] = ("F32", (prod(rows),))
    held = {suffix: _Held(prod(rows)) for suffix in small}
    return (
        part(plan.name, "U32", words, _words(plan, form, slabs, held)),
        *(part(plan.name + suffix, *small[suffix], held[suffix].chunks()) for suffix in small),
    )


class _Held:
    """A small part of a weight, filled while its words are written.

    In one piece, made once: many small ones between the slabs' temporaries would keep the heap
    from shrinking again.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._filled = 0
        self._values: Numbers | None = None

    def add(self, values: Numbers) -> None:
        """The next rows."""
        if self._values is None:
            self._values = np.empty((self._rows, *values.shape[1:]), values.dtype)
        self._values[self._filled : self._filled + len(values)] = values
        self._filled += len(values)

    def chunks(self) -> Iterator[Numbers]:
        """All of it, which is then let go."""
        values, self._values = self._values, None
        if values is not None:
            yield values


def _words(
    plan: TensorPlan, form: QuantFormat, slabs: Slabs, held: Mapping[str, _Held]
) -> Iterator[Numbers]:
    """The words of slab after slab; a slab's other parts go to `held`."""
    for slab in slabs():
        try:
            parts = stored_parts(quantise(slab, form))
        except ImportFailedError as error:
            raise ImportFailedError(f"tensor {plan.source}: {error}") from None
        words = parts.pop("")
        for suffix, values in parts.items():
            held[suffix].add(values.numpy())
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
    for rows in read_rows(entry, SLAB_BYTES):
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
