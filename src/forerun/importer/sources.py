"""Where a model comes from, opened: its configuration files, and what to write for its tensors."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forerun.base.errors import ImportFailedError
from forerun.base.json_types import JsonObject
from forerun.base.logs import logger
from forerun.importer.convert import has_nan
from forerun.importer.gguf_reader.checkpoint import GgufCheckpoint, read_checkpoint
from forerun.importer.gguf_reader.file import open_gguf
from forerun.importer.plan import TensorPlan, in_order
from forerun.importer.write import Part, TensorFile
from forerun.store.headers import TensorEntry
from forerun.store.inventory import Inventory, read_inventory
from forerun.store.manifest import Origin

log = logger(__name__)

CHUNK_BYTES = 4 << 20
LISTED = 8  # surplus tensors that are spelt out

# Weights that their publisher quantised; they come with the issue that imports them (07 CLS).
_PREQUANTISED = re.compile(r".*\.(scales|weight_packed|weight_scale|weight_scale_inv)")
_FLOAT8 = ("F8_E4M3", "F8_E5M2", "F4", "F6_E2M3", "F6_E3M2")


class Checkpoint(Protocol):
    """One model, opened; reading its weights waits until a tensor file is written."""

    @property
    def config(self) -> JsonObject: ...
    @property
    def files(self) -> Mapping[str, bytes]: ...
    @property
    def plans(self) -> tuple[TensorPlan, ...]: ...
    def open(self, plan: TensorPlan) -> TensorFile: ...


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint and what is known about it."""

    checkpoint: Checkpoint
    key: str  # names exactly these bytes: what a repeated import goes by
    template: str | None = None
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class FolderCheckpoint:
    """A folder of safetensors. Values pass through unchanged (PLN-6)."""

    config: JsonObject
    files: Mapping[str, bytes]
    plans: tuple[TensorPlan, ...]
    tensors: Mapping[str, TensorEntry]

    def open(self, plan: TensorPlan) -> TensorFile:
        entry = self.tensors[plan.source]
        part = Part(plan.name, entry.dtype, entry.shape, entry.size, _read_chunks(entry))
        return TensorFile((part,))


def gguf_source(path: Path, *, key: str | None = None, origin: Origin | None = None) -> Source:
    """A GGUF file. `key` names its content where that is known better than by path and time."""
    checkpoint = read_checkpoint(open_gguf(path))
    _warn_of_surplus(path, checkpoint)
    return Source(checkpoint, key or _file_key([path]), origin=origin)


def folder_source(
    folder: Path, *, prefix: str = "", key: str | None = None, origin: Origin | None = None
) -> Source:
    """A folder of safetensors; `prefix` goes before every tensor's name."""
    inventory = read_inventory(folder)
    _refuse_prequantised(inventory)
    plans = in_order(
        TensorPlan(prefix + entry.name, entry.name, entry.shape, entry.size, entry.dtype)
        for entry in inventory.tensors.values()
    )
    checkpoint = FolderCheckpoint(
        config=inventory.config,
        files={name: file.read_bytes() for name, file in inventory.json_files.items()},
        plans=plans,
        tensors=inventory.tensors,
    )
    template = inventory.chat_template
    return Source(
        checkpoint,
        key or _file_key(sorted(inventory.metadata)),
        template=None if template is None else _text(template),
        origin=origin,
    )


def _warn_of_surplus(path: Path, checkpoint: GgufCheckpoint) -> None:
    surplus = checkpoint.surplus
    if surplus:
        more = f" and {len(surplus) - LISTED} more" if len(surplus) > LISTED else ""
        names = ", ".join(surplus[:LISTED]) + more
        log.warning("%s: %d tensors are not used: %s", path.name, len(surplus), names)


def _refuse_prequantised(inventory: Inventory) -> None:
    for entry in inventory.tensors.values():
        if _PREQUANTISED.fullmatch(entry.name) or entry.dtype in _FLOAT8:
            raise ImportFailedError(
                f"tensor {entry.name} ({entry.dtype}) was quantised by its publisher, which is not "
                f"read yet; take the model's float checkpoint or a GGUF file"
            )


def _read_chunks(entry: TensorEntry) -> Iterator[NDArray[Any]]:
    with entry.file.open("rb") as file:
        file.seek(entry.start)
        left = entry.size
        while left:
            data = np.fromfile(file, np.uint8, min(left, CHUNK_BYTES))
            if not data.size:
                raise ImportFailedError(f"{entry.file} ends inside tensor {entry.name}")
            if has_nan(data, entry.dtype):
                raise ImportFailedError(
                    f"tensor {entry.name} holds values that are no numbers; the file "
                    f"{entry.file} is damaged, fetch it again"
                )
            left -= data.size
            yield data


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ImportFailedError(f"{path} is not UTF-8 text") from None


def _file_key(paths: list[Path]) -> str:
    """Changes when a file is moved, rewritten or touched."""
    hasher = hashlib.sha256()
    for path in paths:
        found = path.resolve().stat()
        hasher.update(f"{path.resolve()}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return hasher.hexdigest()
