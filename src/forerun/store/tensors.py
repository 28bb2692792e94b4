"""The tensors of a stored model as its architecture knows them: one for each quantised group."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Final

from forerun.base.quantisation import BITS
from forerun.store.headers import Header, TensorEntry

_QUANTISED_PARTS: Final = ("scale", "bias", "global_scale")
_PACKED: Final = "U32"
_WORD_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class LogicalTensor:
    """A tensor by its values: `shape` counts weights, however they are packed."""

    name: str
    kind: str  # a float type in small letters, or the format of the quantisation
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.shape)


def logical_tensors(header: Header) -> Iterator[LogicalTensor]:
    """The tensors of a blob; what belongs to a quantised one is part of it (07 PLN-5)."""
    names = {tensor.name for tensor in header.tensors}
    for tensor in header.tensors:
        owner, _, part = tensor.name.rpartition(".")
        if part in _QUANTISED_PARTS and owner in names:
            continue
        yield _logical(tensor, header.metadata)


def _logical(tensor: TensorEntry, metadata: dict[str, str]) -> LogicalTensor:
    if tensor.dtype != _PACKED:
        return LogicalTensor(tensor.name, tensor.dtype.lower(), tensor.shape)
    kind = metadata.get("quant_type", _PACKED.lower())
    if kind not in BITS or not tensor.shape:
        return LogicalTensor(tensor.name, kind, tensor.shape)
    *rows, words = tensor.shape
    return LogicalTensor(tensor.name, kind, (*rows, words * _WORD_BITS // BITS[kind]))
