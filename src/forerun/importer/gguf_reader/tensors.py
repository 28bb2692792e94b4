"""The tensors of a GGUF file as the store holds them (GUF-2..6)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from forerun.base.errors import ImportFailedError
from forerun.importer.convert import (
    GROUP,
    BlockKind,
    Bytes,
    GroupTerms,
    group_terms,
    is_finite,
    pack_words,
    to_bfloat16,
    unpermuted_rows,
    widen,
    without_one,
)
from forerun.importer.gguf_reader.config import Heads
from forerun.importer.gguf_reader.file import GgufFile, GgufTensor
from forerun.importer.gguf_reader.names import (
    ROPE_FREQUENCIES,
    Family,
    permuted_heads,
    stored_name,
    stores_one_more,
)
from forerun.importer.plan import BlobPlan, Rule, TensorPlan
from forerun.importer.policy.choose import Choose
from forerun.importer.policy.kinds import GROUPS, eight_bit
from forerun.importer.write import Part, TensorFile, part

CHUNK_BYTES = 1 << 20  # of the file; a K block grows to 12 times its size on the way
KEPT = {"F32": "F32", "F16": "F16", "BF16": "BF16"}


@dataclass(frozen=True, slots=True)
class Planned:
    plans: list[TensorPlan]
    surplus: list[str]  # tensors that the family does not know


def plan_tensors(file: GgufFile, family: Family, heads: Heads, choose: Choose) -> Planned:
    """Raises ImportFailedError naming the type and tensor that cannot be read."""
    planned = Planned([], [])
    for tensor in file.tensors:
        name = stored_name(tensor.name, family)
        if name is not None:
            rule, kind, group = _outcome(tensor, choose(name, tensor.shape))
            plan = TensorPlan(
                name=name,
                sources=(tensor.name,),
                shape=tensor.shape,
                size=tensor.size,
                kind=kind,
                rule=rule,
                group=group,
                heads=permuted_heads(tensor.name, family, heads.query, heads.kv),
                minus_one=stores_one_more(tensor.name, family),
            )
            planned.plans.append(plan)
        elif tensor.name != ROPE_FREQUENCIES:
            planned.surplus.append(tensor.name)
    return planned


def _outcome(tensor: GgufTensor, wanted: str) -> tuple[Rule, str, int]:
    """What becomes of a tensor: rule, type and group.

    Blocks that are affine groups of as few bits as are wanted, or fewer, keep their values: to
    round them again would cost some and gain nothing.
    """
    rule = _rule(tensor)
    if rule is Rule.AFFINE:
        kept = BlockKind[tensor.type.name].format
        if wanted in ("", kept, eight_bit(kept)):
            return rule, kept, GROUP
    if wanted:
        return Rule.QUANTISE, wanted, GROUPS[wanted]
    return rule, KEPT.get(tensor.type.name, "BF16"), 0


def _rule(tensor: GgufTensor) -> Rule:
    """What becomes of a tensor without a wish."""
    if tensor.type.name in KEPT:
        return Rule.KEEP
    if tensor.type.name in BlockKind.__members__ and len(tensor.shape) > 1:
        return Rule.AFFINE
    if not _widens(tensor.type):
        raise ImportFailedError(
            f"tensor {tensor.name} is of type {tensor.type.name}, which cannot be read; use a "
            f"file of another quantisation, such as Q4_1 or Q8_0"
        )
    return Rule.WIDEN


def _widens(kind: GGMLQuantizationType) -> bool:
    """Whether the gguf package dequantises the type."""
    _, block_bytes = GGML_QUANT_SIZES[kind]
    try:
        widen(np.zeros((1, block_bytes), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def tensor_file(file: GgufFile, tensor: GgufTensor, blob: BlobPlan) -> TensorFile:
    """The blob of one tensor. Reading happens as its chunks are asked for, but for AFFINE."""
    (plan,) = blob.tensors
    return TensorFile(tuple(_parts(file, tensor, plan)), blob.metadata)


def _parts(file: GgufFile, tensor: GgufTensor, plan: TensorPlan) -> Sequence[Part]:
    if plan.rule is Rule.AFFINE:
        return _affine(file, tensor, plan)
    if plan.rule is Rule.QUANTISE:
        # torch, which takes seconds
        from forerun.importer.quantising import quantised_parts, slabs_of

        return quantised_parts(plan, lambda: slabs_of(_widened(file, tensor, plan)))
    return [_dense(file, tensor, plan)]


def _widened(file: GgufFile, tensor: GgufTensor, plan: TensorPlan) -> Iterator[NDArray[np.float32]]:
    """The values in rows of the original's order, some at a time."""
    step = max(1, CHUNK_BYTES // tensor.row_bytes)
    slabs = file.read_rows(tensor, step)
    if plan.heads:
        whole = _rows_in_order(_whole(file, tensor), plan)
        slabs = (whole[first : first + step] for first in range(0, len(whole), step))
    for rows in slabs:
        yield widen(rows, tensor.type)


def _dense(file: GgufFile, tensor: GgufTensor, plan: TensorPlan) -> Part:
    if plan.minus_one:
        values = without_one(widen(_whole(file, tensor), tensor.type))
        _refuse_strange(tensor, finite=bool(np.isfinite(values).all()))
        return part(plan.name, "F32", plan.shape, [values])
    dtype = KEPT.get(tensor.type.name, "BF16")
    if plan.heads:
        return part(plan.name, dtype, plan.shape, _permuted(file, tensor, plan))
    return part(plan.name, dtype, plan.shape, _streamed(file, tensor, plan.rule))


def _streamed(file: GgufFile, tensor: GgufTensor, rule: Rule) -> Iterator[NDArray[Any]]:
    for rows in file.read_rows(tensor, max(1, CHUNK_BYTES // tensor.row_bytes)):
        yield _values(tensor, rows, rule)


def _permuted(file: GgufFile, tensor: GgufTensor, plan: TensorPlan) -> Iterator[NDArray[Any]]:
    values = _values(tensor, _whole(file, tensor), plan.rule)
    yield _rows_in_order(values, plan)


def _values(tensor: GgufTensor, rows: Bytes, rule: Rule) -> NDArray[Any]:
    if rule is Rule.KEEP:
        _refuse_strange(tensor, finite=is_finite(rows, KEPT[tensor.type.name]))
        return rows
    values = widen(rows, tensor.type)
    _refuse_strange(tensor, finite=bool(np.isfinite(values).all()))
    return to_bfloat16(values)


def _affine(file: GgufFile, tensor: GgufTensor, plan: TensorPlan) -> Sequence[Part]:
    kind = BlockKind[tensor.type.name]
    rows = _rows_in_order(_whole(file, tensor), plan)
    terms = group_terms(rows, kind)
    _refuse_strange(tensor, finite=terms.finite)
    columns = plan.shape[-1]
    words = (*plan.shape[:-1], columns * kind.bits // 32)
    step = max(1, CHUNK_BYTES // tensor.row_bytes)
    packed = (pack_words(rows[i : i + step], kind) for i in range(0, len(rows), step))
    return part(plan.name, "U32", words, packed), *_term_parts(plan, terms)


def _term_parts(plan: TensorPlan, terms: GroupTerms) -> tuple[Part, Part]:
    dtype = "F16" if terms.scale.dtype == np.float16 else "F32"
    shape = (*plan.shape[:-1], plan.shape[-1] // GROUP)
    return (
        part(f"{plan.name}.scale", dtype, shape, [terms.scale]),
        part(f"{plan.name}.bias", dtype, shape, [terms.bias]),
    )


def _whole(file: GgufFile, tensor: GgufTensor) -> Bytes:
    (rows,) = file.read_rows(tensor, tensor.rows)
    return rows


def _rows_in_order(rows: NDArray[Any], plan: TensorPlan) -> NDArray[Any]:
    """Whole rows moved back to where the original has them; a bias has one value a row."""
    if not plan.heads:
        return rows
    first = plan.shape[0]
    return rows.reshape(first, -1)[unpermuted_rows(first, plan.heads)]


def _refuse_strange(tensor: GgufTensor, *, finite: bool) -> None:
    if not finite:
        raise ImportFailedError(
            f"tensor {tensor.name} holds values that are no finite numbers; the file is "
            f"damaged, fetch it again"
        )
