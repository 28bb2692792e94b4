"""Where a model comes from, opened: its configuration files, and what to write for its tensors."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from forerun.base.errors import ImportFailedError, RequestError, StoreError
from forerun.base.json_types import JsonObject
from forerun.base.logs import logger
from forerun.base.shown import listed
from forerun.importer.classification import classify, refuse_request, source_tensors
from forerun.importer.gguf_reader.checkpoint import GgufCheckpoint, read_checkpoint
from forerun.importer.gguf_reader.file import open_gguf
from forerun.importer.plan import BlobPlan
from forerun.importer.planning import plan_blobs
from forerun.importer.policy.choose import chooser
from forerun.importer.source_tensors import SourceTensor
from forerun.importer.tensor_parts import tensor_file
from forerun.importer.write import TensorFile
from forerun.store.headers import TensorEntry, read_header
from forerun.store.inventory import CONFIG, read_inventory
from forerun.store.manifest import JSON, Origin
from forerun.store.stored import StoredModel

log = logger(__name__)

HEAD = "lm_head.weight"  # the end of its name
_PLAN_DIGITS = 16  # of its digest, in a key


class Checkpoint(Protocol):
    """One model, opened; reading its weights waits until a blob is written."""

    @property
    def config(self) -> JsonObject: ...
    @property
    def files(self) -> Mapping[str, bytes]: ...
    @property
    def blobs(self) -> tuple[BlobPlan, ...]: ...
    def open(self, blob: BlobPlan) -> TensorFile: ...


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint and what is known about it."""

    checkpoint: Checkpoint
    key: str  # names exactly these bytes and what becomes of them: a repeated import goes by it
    template: str | None = None
    origin: Origin | None = None
    quantize: str = ""  # the type asked for


@dataclass(frozen=True, slots=True)
class FolderCheckpoint:
    """A folder of safetensors. Values pass through unchanged but for quantisation (PLN-6)."""

    config: JsonObject
    files: Mapping[str, bytes]
    blobs: tuple[BlobPlan, ...]
    sources: Mapping[str, SourceTensor]

    def open(self, blob: BlobPlan) -> TensorFile:
        return tensor_file(blob, self.sources)


def gguf_source(
    path: Path, *, quantize: str = "", key: str | None = None, origin: Origin | None = None
) -> Source:
    """A GGUF file. `key` names its content where that is known better than by path and time.

    quantize  the type to requantise to; "" keeps every value (GUF-2)
    """
    checkpoint = read_checkpoint(open_gguf(path), quantize)
    _warn_of_surplus(path, checkpoint)
    key = _key(key or _file_key([path]), checkpoint)
    return Source(checkpoint, key, origin=origin, quantize=quantize)


def folder_source(
    folder: Path,
    *,
    prefix: str = "",
    quantize: str = "",
    draft: bool = False,
    key: str | None = None,
    origin: Origin | None = None,
) -> Source:
    """A folder of safetensors.

    prefix    goes before every tensor's name
    quantize  the type that its weights get by policy, "" for none; not for what is quantised
              already: RequestError
    draft     whether it is a draft model, which has a policy of its own (POL-7)
    """
    inventory = read_inventory(folder)
    template = inventory.chat_template
    checkpoint = _checkpoint(
        inventory.config,
        {name: file.read_bytes() for name, file in inventory.json_files.items()},
        inventory.tensors,
        quantize,
        prefix=prefix,
        draft=draft,
    )
    return Source(
        checkpoint,
        _key(key or _file_key(sorted(inventory.metadata)), checkpoint),
        template=None if template is None else _text(template),
        origin=origin,
        quantize=quantize,
    )


def stored_source(model: StoredModel, quantize: str) -> Source:
    """The target of a stored model, for its weights to become another type."""
    draft = model.draft
    prefix = None if draft is None else draft.tensor_prefix
    headers = [
        read_header(model.file(layer), StoreError)
        for layer in model.tensors
        if prefix is None or not layer.name.startswith(prefix)
    ]
    again = "" if draft is None else ", and name its DRAFT again"
    for header in headers:
        if "quant_type" in header.metadata:
            raise RequestError(
                f"quantize is {quantize}, and {header.tensors[0].name} of {model.name} is "
                f"{header.metadata['quant_type']} already; create it from the float checkpoint"
                f"{again}"
            )
    files = {layer.name: model.read(layer) for layer in model.manifest.of_type(JSON)}
    entries = {tensor.name: tensor for header in headers for tensor in header.tensors}
    checkpoint = _checkpoint(model.json(CONFIG), files, entries, quantize)
    return Source(checkpoint, _key(model.digest.hex, checkpoint), quantize=quantize)


def _checkpoint(
    config: JsonObject,
    files: Mapping[str, bytes],
    entries: Mapping[str, TensorEntry],
    quantize: str,
    *,
    prefix: str = "",
    draft: bool = False,
) -> FolderCheckpoint:
    found = classify(entries)
    refuse_request(found, quantize)
    sources = source_tensors(found, entries, config)
    tied = not any(name.endswith(HEAD) for name in sources)
    choose = chooser(config, quantize or found.kind, draft=draft, tied=tied)
    return FolderCheckpoint(config, files, plan_blobs(sources, choose, prefix), sources)


def _warn_of_surplus(path: Path, checkpoint: GgufCheckpoint) -> None:
    surplus = checkpoint.surplus
    if surplus:
        log.warning("%s: %d tensors are not used: %s", path.name, len(surplus), listed(surplus))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ImportFailedError(f"{path} is not UTF-8 text") from None


def _key(content: str, checkpoint: Checkpoint) -> str:
    """The plan counts as well: configuration files and an index decide it, beside what is asked."""
    plan = hashlib.sha256(repr(checkpoint.blobs).encode())
    return f"{content}-{plan.hexdigest()[:_PLAN_DIGITS]}"


def _file_key(paths: list[Path]) -> str:
    """Changes when a file is moved, rewritten or touched."""
    hasher = hashlib.sha256()
    for path in paths:
        found = path.resolve().stat()
        hasher.update(f"{path.resolve()}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return hasher.hexdigest()
