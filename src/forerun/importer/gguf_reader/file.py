"""The header of a GGUF file, and its tensors' bytes on demand.

The `gguf` package's own reader keeps several arrays for every token of the vocabulary: 130 MB and
1.8 s for 49,152 tokens, four times that for 151,936. This one keeps plain lists (CFG-7); the tests
compare the two.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFValueType,
)
from numpy.typing import NDArray

from forerun.base.errors import ImportFailedError
from forerun.importer.gguf_reader.metadata import Metadata, Value

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4

_FORMATS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.FLOAT64: "d",
    GGUFValueType.BOOL: "?",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]  # outermost first, as everywhere; the file lists them innermost first
    start: int  # byte in the file
    size: int  # bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of one run along the innermost dimension."""
        block, block_bytes = GGML_QUANT_SIZES[self.type]
        return self.shape[-1] // block * block_bytes

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])


@dataclass(frozen=True, slots=True)
class GgufFile:
    path: Path
    metadata: Metadata
    tensors: tuple[GgufTensor, ...]

    def read_rows(self, tensor: GgufTensor, rows: int) -> Iterator[NDArray[np.uint8]]:
        """The tensor's bytes as [n, row_bytes] arrays of at most `rows` rows each.

        Read, not mapped: a file that shrinks meanwhile is an error here and not a signal.
        """
        with self.path.open("rb") as file:
            file.seek(tensor.start)
            for first in range(0, tensor.rows, rows):
                count = min(rows, tensor.rows - first)
                data = np.fromfile(file, np.uint8, count * tensor.row_bytes)
                if data.size < count * tensor.row_bytes:
                    raise ImportFailedError(f"{self.path} ends inside tensor {tensor.name}")
                yield data.reshape(count, tensor.row_bytes)


def open_gguf(path: Path) -> GgufFile:
    """Read everything but the weights. Raises ImportFailedError naming file, key or tensor."""
    with path.open("rb") as file:
        header = _Header(file, path, os.fstat(file.fileno()).st_size)
        if file.read(4) != MAGIC:
            raise ImportFailedError(f"{path} is not a GGUF file; FROM takes a GGUF or a folder")
        version = header.number("I")
        if version not in VERSIONS:
            raise ImportFailedError(
                f"{path} is GGUF version {version}; versions 2 and 3, little-endian, can be read"
            )
        tensor_count, key_count = int(header.number("Q")), int(header.number("Q"))
        metadata = Metadata(path.name, dict(_entry(header) for _ in range(key_count)))
        described = [_tensor(header) for _ in range(tensor_count)]
        alignment = metadata.whole_or("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if alignment <= 0 or alignment & (alignment - 1):
            raise ImportFailedError(f"{path}: general.alignment is {alignment}, no power of two")
        base = -(-file.tell() // alignment) * alignment
    tensors = tuple(GgufTensor(t.name, t.type, t.shape, base + t.start, t.size) for t in described)
    _check_tensors(path, tensors, header.size)
    return GgufFile(path, metadata, tensors)


@dataclass(frozen=True, slots=True)
class _Header:
    """A cursor over the header that never reads, or reserves, more than the file has."""

    file: BinaryIO
    path: Path
    size: int

    def bytes(self, count: int) -> bytes:
        if count > self.size - self.file.tell():
            raise ImportFailedError(f"{self.path} is cut short: its header runs past its end")
        return self.file.read(count)

    def number(self, form: str) -> float:
        (value,) = struct.unpack("<" + form, self.bytes(struct.calcsize("<" + form)))
        assert isinstance(value, int | float)
        return value

    def numbers(self, form: str, count: int) -> list[int | float | bool]:
        data = self.bytes(struct.calcsize("<" + form) * count)
        return list(struct.unpack(f"<{count}{form}", data))

    def text(self) -> str:
        data = self.bytes(int(self.number("Q")))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise ImportFailedError(
                f"{self.path} holds text that is not UTF-8: {data[:40]!r}"
            ) from None

    def value_type(self) -> GGUFValueType:
        code = int(self.number("I"))
        try:
            return GGUFValueType(code)
        except ValueError:
            raise ImportFailedError(f"{self.path} holds a value of unknown type {code}") from None


def _entry(header: _Header) -> tuple[str, Value]:
    key = header.text()
    kind = header.value_type()
    if kind == GGUFValueType.ARRAY:
        return key, _array(header, key)
    if kind == GGUFValueType.STRING:
        return key, header.text()
    value = header.numbers(_FORMATS[kind], 1)[0]
    if kind == GGUFValueType.FLOAT32:  # 1e-5 as such, and not 9.99999974e-06
        value = float(str(np.float32(value)))
    return key, value


def _array(header: _Header, key: str) -> Value:
    kind = header.value_type()
    count = int(header.number("Q"))
    if kind == GGUFValueType.ARRAY:
        raise ImportFailedError(f"{header.path}: {key} is an array of arrays, which is unknown")
    if kind == GGUFValueType.STRING:
        return [header.text() for _ in range(count)]
    return header.numbers(_FORMATS[kind], count)


def _tensor(header: _Header) -> GgufTensor:
    """`start` still counts from the first tensor's data."""
    name = header.text()
    dimensions = int(header.number("I"))
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise ImportFailedError(f"{header.path}: tensor {name} has {dimensions} dimensions")
    shape = tuple(int(n) for n in reversed(header.numbers("Q", dimensions)))
    code = int(header.number("I"))
    start = int(header.number("Q"))
    try:
        kind = GGMLQuantizationType(code)
    except ValueError:
        raise ImportFailedError(f"tensor {name} has unknown type {code}") from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise ImportFailedError(
            f"tensor {name} has rows of {shape[-1]} weights, no multiple of {kind.name}'s {block}"
        )
    return GgufTensor(name, kind, shape, start, prod(shape) // block * block_bytes)


def _check_tensors(path: Path, tensors: tuple[GgufTensor, ...], size: int) -> None:
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise ImportFailedError(f"{path} has tensor {tensor.name} twice")
        names.add(tensor.name)
        if tensor.start + tensor.size > size:
            raise ImportFailedError(
                f"{path} is cut short: tensor {tensor.name} ends at byte "
                f"{tensor.start + tensor.size} of {size}; fetch the file again"
            )
