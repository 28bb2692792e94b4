"""The bytes of a folder's tensors, in pieces and checked on the way."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import ImportFailedError
from forerun.importer.convert import Bytes, is_finite
from forerun.store.headers import TensorEntry

CHUNK_BYTES = 4 << 20


def read_chunks(entry: TensorEntry, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Bytes]:
    """All bytes of a tensor, whose numbers are finite.

    ImportFailedError names it where they are not, or where the file ends early. Read, not mapped: a
    file that shrinks meanwhile is an error here and not a signal.
    """
    with entry.file.open("rb") as file:
        file.seek(entry.start)
        left = entry.size
        while left:
            data = np.fromfile(file, np.uint8, min(left, chunk_bytes))
            if not data.size:
                raise ImportFailedError(f"{entry.file} ends inside tensor {entry.name}")
            if not is_finite(data, entry.dtype):
                raise ImportFailedError(
                    f"tensor {entry.name} holds values that are no finite numbers; the file "
                    f"{entry.file} is damaged, fetch it again"
                )
            left -= data.size
            yield data


def read_rows(entry: TensorEntry, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Bytes]:
    """Whole rows as [n, row bytes], as many at a time as `chunk_bytes` hold, but one at least."""
    row_bytes = entry.size // max(1, _rows(entry))
    if not row_bytes:
        return
    for data in read_chunks(entry, max(1, chunk_bytes // row_bytes) * row_bytes):
        yield data.reshape(-1, row_bytes)


def read_whole(entry: TensorEntry) -> Bytes:
    """A small tensor's bytes."""
    return np.concatenate([np.empty(0, np.uint8), *read_chunks(entry)])


def read_number(entry: TensorEntry) -> np.float32:
    """The one F32 of a global scale, finite and above zero."""
    number: NDArray[Any] = read_whole(entry).view("<f4")
    value = np.float32(number[0])
    if not (np.isfinite(value) and value > 0):
        raise ImportFailedError(f"tensor {entry.name} is {value}; a scale is a number above zero")
    return value


def _rows(entry: TensorEntry) -> int:
    rows = 1
    for size in entry.shape[:-1]:
        rows *= size
    return rows
