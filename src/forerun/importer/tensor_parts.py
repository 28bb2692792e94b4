"""The content of a folder's blobs: what is written for each planned tensor (07 PLN-5, PRQ)."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from forerun.base.quantisation import BITS
from forerun.importer.plan import BlobPlan, Rule, TensorPlan
from forerun.importer.reading import read_chunks, read_number
from forerun.importer.source_tensors import SourceTensor
from forerun.importer.write import Part, TensorFile, part
from forerun.store.headers import TensorEntry

Sources = Mapping[str, SourceTensor]


def tensor_file(blob: BlobPlan, sources: Sources) -> TensorFile:
    """A blob's content; weights are read as its chunks are asked for."""
    parts = [
        part
        for plan in blob.tensors
        for part in _parts(plan, [sources[name] for name in plan.sources])
    ]
    return TensorFile(tuple(parts), blob.metadata)


def _parts(plan: TensorPlan, sources: Sequence[SourceTensor]) -> tuple[Part, ...]:
    if plan.rule is Rule.KEEP:
        entries = [source.values for source in sources]
        return (Part(plan.name, plan.kind, plan.shape, plan.size, _joined(entries)),)
    if plan.rule is Rule.GATHER:
        return tuple(_gathered(plan, sources))
    # torch, which takes seconds
    from forerun.importer.quantising import bfloat16_chunks, folder_values, quantised_parts

    if plan.rule is Rule.QUANTISE:
        return quantised_parts(plan, lambda: folder_values(sources))
    assert plan.rule is Rule.WIDEN, plan.rule
    return (part(plan.name, "BF16", plan.shape, bfloat16_chunks(folder_values(sources))),)


def _joined(entries: Sequence[TensorEntry]) -> Iterator[NDArray[np.uint8]]:
    for entry in entries:
        yield from read_chunks(entry)


def _gathered(plan: TensorPlan, sources: Sequence[SourceTensor]) -> Iterator[Part]:
    """A publisher's parts under our names. Codes and small scales keep their bits."""
    *rows, columns = plan.shape
    words = (*rows, columns * BITS[plan.kind] // 32)
    yield part(plan.name, "U32", words, _joined([source.values for source in sources]))
    groups = (*rows, columns // plan.group)
    for name, entries in (
        ("scale", [source.scale for source in sources if source.scale]),
        ("bias", [source.bias for source in sources if source.bias]),
    ):
        if entries:
            dtype = "U8" if entries[0].dtype == "F8_E4M3" else entries[0].dtype
            yield part(f"{plan.name}.{name}", dtype, groups, _joined(entries))
    if sources[0].global_scale is not None:
        yield _global_scale(plan, sources)


def _global_scale(plan: TensorPlan, sources: Sequence[SourceTensor]) -> Part:
    """One number; of a stack, whose experts have their own, one a row (LIN-4)."""
    shape = () if len(sources) == 1 else (prod(plan.shape[:-1]),)
    return part(f"{plan.name}.global_scale", "F32", shape, _factors(plan, sources))


def _factors(plan: TensorPlan, sources: Sequence[SourceTensor]) -> Iterator[NDArray[np.float32]]:
    copies = 1 if len(sources) == 1 else plan.shape[-2]
    for source in sources:
        assert source.global_scale is not None
        number = read_number(source.global_scale)
        yield np.full(copies, 1 / number if source.inverted else number, np.float32)
