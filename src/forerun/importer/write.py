"""Tensors to blobs: one safetensors file each, written part by part, never twice (PLN-1, CFG-7)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64  # of the first tensor's data in its file: what a mapped read likes
ITEM_BYTES = {"U32": 4, "F32": 4, "F16": 2, "BF16": 2, "U8": 1}


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a file. `chunks` are its values in order, asked for once, after the parts
    before it are written; `size` is what they come to in bytes."""

    name: str
    dtype: str  # as safetensors calls it
    shape: tuple[int, ...]
    size: int
    chunks: Iterable[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class TensorFile:
    """The content of one blob."""

    parts: tuple[Part, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of data."""
        return sum(part.size for part in self.parts)


class Sink(Protocol):
    def write(self, data: memoryview, /) -> int: ...


def part(name: str, dtype: str, shape: tuple[int, ...], chunks: Iterable[NDArray[Any]]) -> Part:
    """A part of a type whose width is known here."""
    return Part(name, dtype, shape, prod(shape) * ITEM_BYTES[dtype], chunks)


def write_tensors(file: TensorFile, sink: Sink) -> None:
    """Write the header, then every chunk as it comes."""
    sink.write(memoryview(_header(file)))
    for tensor in file.parts:
        written = 0
        for chunk in tensor.chunks:
            written += sink.write(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data)
        assert written == tensor.size, f"{tensor.name}: {written} bytes of {tensor.size}"


def _header(file: TensorFile) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(file.metadata)} if file.metadata else {}
    start = 0
    for tensor in file.parts:
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": [start, start + tensor.size],
        }
        start += tensor.size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
