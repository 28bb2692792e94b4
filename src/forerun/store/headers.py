"""Headers of safetensors files, read without a byte of weight data (spec 07 INV-1).

The format is eight bytes of little-endian length, that many bytes of JSON, and the data, which
the header's offsets cover without gap or overlap.
"""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from forerun.base.errors import ForerunError, RequestError
from forerun.store.fields import Fields

MAX_HEADER_BYTES: Final = 100_000_000  # what the format's own library accepts
_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"
# Bits of one element; some types are smaller than a byte.
_BITS: Final = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6},
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor's bytes lie: `file[start:end]`, offsets counted from the file's first byte."""

    name: str
    dtype: str  # as safetensors calls it
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def size(self) -> int:
        """Bytes of data."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Header:
    """What a safetensors file says about itself, tensors in the order of their data."""

    tensors: tuple[TensorEntry, ...]
    metadata: dict[str, str]


def read_header(path: Path, error: type[ForerunError] = RequestError) -> Header:
    """The header of a safetensors file, checked against the file's length.

    Raises `error` naming the file, and for one cut short how many bytes it has and should have.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = _header_bytes(file, size, path, error)
    except OSError as reason:
        raise error(f"cannot read {path}: {reason.strerror}") from None
    fields = Fields.parse(data, f"header of {path}", error, unique=True)
    metadata = _metadata(fields)
    start = _LENGTH_BYTES + len(data)
    names = [name for name in fields.values if name != _METADATA]
    tensors = sorted(
        (_entry(fields.fields(name), name, path, start) for name in names),
        key=lambda tensor: (tensor.start, tensor.end),
    )
    _check_coverage(tensors, start, size, path, error)
    return Header(tuple(tensors), metadata)


def _header_bytes(file: BinaryIO, size: int, path: Path, error: type[ForerunError]) -> bytes:
    if size < _LENGTH_BYTES:
        raise error(f"{path} is truncated: it has {size} bytes, too few for a safetensors file")
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > MAX_HEADER_BYTES:
        raise error(f"{path} is not a safetensors file: its header would have {length} bytes")
    if _LENGTH_BYTES + length > size:
        raise error(
            f"{path} is truncated: it has {size} bytes, and its header alone needs "
            f"{_LENGTH_BYTES + length}; fetch it again"
        )
    return file.read(length)


def _metadata(fields: Fields) -> dict[str, str]:
    if _METADATA not in fields.values:
        return {}
    stated = fields.fields(_METADATA)
    return {name: stated.text(name) for name in stated.values}


def _entry(fields: Fields, name: str, path: Path, data_start: int) -> TensorEntry:
    dtype = fields.text("dtype")
    if dtype not in _BITS:
        raise fields.wrong("dtype", "a type of safetensors")
    shape = _whole_numbers(fields, "shape")
    offsets = _whole_numbers(fields, "data_offsets")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise fields.wrong("data_offsets", "[start, end] with start <= end")
    bits = math.prod(shape) * _BITS[dtype]
    begin, end = offsets
    if (end - begin) * 8 != bits:
        raise fields.error(
            f"{fields.where} spans {end - begin} bytes, and {dtype} {list(shape)} needs "
            f"{-(-bits // 8)}"
        )
    return TensorEntry(name, dtype, shape, path, data_start + begin, data_start + end)


def _whole_numbers(fields: Fields, name: str) -> tuple[int, ...]:
    items = fields.values.get(name)
    if not isinstance(items, list):
        raise fields.wrong(name, "a list of whole numbers")
    numbers = tuple(
        item
        for item in items
        if isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**63
    )
    if len(numbers) < len(items):
        raise fields.wrong(name, "a list of whole numbers")
    return numbers


def _check_coverage(
    tensors: list[TensorEntry], start: int, size: int, path: Path, error: type[ForerunError]
) -> None:
    """The tensors' bytes follow one another from the header's end to the file's."""
    at = start
    for tensor in tensors:
        if tensor.start != at:
            raise error(
                f"{path}: the data of {tensor.name!r} starts at byte {tensor.start} instead of "
                f"{at}; the file is damaged"
            )
        at = tensor.end
    if at > size:
        raise error(f"{path} is truncated: it has {size} bytes instead of {at}; fetch it again")
    if at < size:
        raise error(f"{path} has {size} bytes instead of {at}; the file is damaged")
