"""The tensors of a stored model as its architecture knows them: one for each quantised group."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

from forerun.base.quantisation import BITS
from forerun.store.headers import Header, TensorEntry

_QUANTISED_PARTS: Final = ("scale", "bias", "global_scale")
_PACKED: Final = "U32"
_WORD_BITS: Final = 32
_INTEGERS: Final = ("bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
_TABLES: Final = ("embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True, slots=True)
class LogicalTensor:
    """A tensor by its values: `shape` counts weights, however they are packed."""

    name: str
    kind: str  # a float type in small letters, or the format of the quantisation
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def is_weight(self) -> bool:
        """A draft's d2t and t2d are none: they map ids."""
        return self.kind not in _INTEGERS


def logical_tensors(header: Header) -> Iterator[LogicalTensor]:
    """The tensors of a blob; what belongs to a quantised one is part of it (07 PLN-5)."""
    names = {tensor.name for tensor in header.tensors}
    for tensor in header.tensors:
        owner, _, part = tensor.name.rpartition(".")
        if part in _QUANTISED_PARTS and owner in names:
            continue
        yield _logical(tensor, header.metadata)


def weights_summary(tensors: Iterable[LogicalTensor]) -> str:
    """How many weights are of which kind, as `kinds_summary` has it."""
    return kinds_summary(tensor.kind for tensor in tensors if tensor.is_weight)


def kinds_summary(kinds: Iterable[str]) -> str:
    """How many are of which kind, most first: "int4 210, f32 61, int8 1"."""
    counts = Counter(kinds)
    ranked = sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))
    return ", ".join(f"{kind} {count}" for kind, count in ranked)


def prevailing_kind(tensors: Iterable[LogicalTensor]) -> str:
    """The kind that most weights have, in the layers where there are any.

    Tables and heads have rules of their own, and in small models most of the numbers: of an import
    to int4 they would often say int8.
    """
    held = [tensor for tensor in tensors if tensor.is_weight]
    counts: Counter[str] = Counter()
    for tensor in [each for each in held if not each.name.endswith(_TABLES)] or held:
        counts[tensor.kind] += tensor.elements
    return min(counts, key=lambda kind: (-counts[kind], kind), default="")


def _logical(tensor: TensorEntry, metadata: dict[str, str]) -> LogicalTensor:
    if tensor.dtype != _PACKED:
        return LogicalTensor(tensor.name, tensor.dtype.lower(), tensor.shape)
    kind = metadata.get("quant_type", _PACKED.lower())
    if kind not in BITS or not tensor.shape:
        return LogicalTensor(tensor.name, kind, tensor.shape)
    *rows, words = tensor.shape
    return LogicalTensor(tensor.name, kind, (*rows, words * _WORD_BITS // BITS[kind]))
