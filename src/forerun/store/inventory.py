"""What a folder of safetensors holds: config, configuration files, tensors (spec 07 INV)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forerun.base.errors import RequestError
from forerun.base.json_types import JsonObject
from forerun.base.shown import shown
from forerun.store.fields import Fields
from forerun.store.headers import TensorEntry, read_header

CONFIG: Final = "config.json"
INDEX: Final = "model.safetensors.index.json"
CHAT_TEMPLATE: Final = "chat_template.jinja"
_WHOLE: Final = "model.safetensors"
_POOLING: Final = re.compile(r"[0-9]+_Pooling/config\.json")


@dataclass(frozen=True, slots=True)
class Inventory:
    """A model folder, read once. Nobody opens its headers again (INV-1)."""

    folder: Path
    config: JsonObject
    tensors: dict[str, TensorEntry]
    metadata: dict[Path, dict[str, str]]  # of each weight file
    json_files: dict[str, Path]  # all but shard indexes, config.json among them (CFG-1)
    chat_template: Path | None


def is_model_folder(folder: Path) -> bool:
    """Whether `folder` has a config.json and at least one safetensors file (MF-8)."""
    return (folder / CONFIG).is_file() and any(folder.glob("*.safetensors"))


def read_inventory(folder: Path) -> Inventory:
    """Read config and headers of a model folder.

    Raises RequestError naming the file or tensor that is missing, doubled, cut short or unclear.
    """
    config = _read_fields(folder / CONFIG).values
    if (folder / INDEX).is_file():
        tensors, metadata = _indexed(folder, read_index(folder / INDEX))
    else:
        tensors, metadata = _unindexed(folder)
    if not tensors:
        raise RequestError(f"{folder} has no tensors; a model has {_WHOLE} or a shard index")
    template = folder / CHAT_TEMPLATE
    return Inventory(
        folder=folder,
        config=config,
        tensors=tensors,
        metadata=metadata,
        json_files=_json_files(folder),
        chat_template=template if template.is_file() else None,
    )


def read_index(path: Path) -> dict[str, str]:
    """Tensor name to shard file name. RequestError for a shard that is no plain file name."""
    fields = _read_fields(path, unique=True).fields("weight_map")
    return {name: _shard_name(fields, name) for name in fields.values}


def unindexed_weights(names: Iterable[str]) -> list[str]:
    """The weight files among file names where no index says which they are (INV-3)."""
    return sorted(n for n in names if n.startswith("model") and n.endswith(".safetensors"))


def is_index(name: str) -> bool:
    """Whether a file says where shards' tensors are; of no use once they are imported."""
    return name.endswith(".index.json")


def is_pooling_config(name: str) -> bool:
    """Whether a file says how sentence-transformers pools; the one file of a subfolder (API-13)."""
    return _POOLING.fullmatch(name) is not None


def _read_fields(path: Path, *, unique: bool = False) -> Fields:
    try:
        data = path.read_bytes()
    except OSError as reason:
        raise RequestError(f"cannot read {path}: {reason.strerror}") from None
    return Fields.parse(data, str(path), RequestError, unique=unique)


def _shard_name(fields: Fields, tensor: str) -> str:
    name = fields.text(tensor)
    plain = not set(name) & set("/\\:\0") and not name.startswith(".")
    if not plain or not name.endswith(".safetensors"):
        raise fields.wrong(tensor, "a plain file name that ends in .safetensors")
    return name


def _indexed(
    folder: Path, index: dict[str, str]
) -> tuple[dict[str, TensorEntry], dict[Path, dict[str, str]]]:
    """INV-2: the tensors that the index names, each in its shard and in no other."""
    tensors: dict[str, TensorEntry] = {}
    metadata: dict[Path, dict[str, str]] = {}
    for shard in sorted(set(index.values())):
        path = folder / shard
        if not path.is_file():
            raise RequestError(f"{folder} is incomplete: its index names {shown(shard)}; fetch it")
        header = read_header(path)
        metadata[path] = header.metadata
        for tensor in header.tensors:
            if tensor.name not in index:
                continue
            if index[tensor.name] != shard:
                raise RequestError(
                    f"tensor {shown(tensor.name)} is in {shard}, and {INDEX} says "
                    f"{index[tensor.name]}; each tensor belongs to one shard"
                )
            tensors[tensor.name] = tensor
    for name, shard in index.items():
        if name not in tensors:
            raise RequestError(
                f"{folder} is incomplete: tensor {shown(name)} is not in {shard}; fetch it again"
            )
    return tensors, metadata


def _unindexed(folder: Path) -> tuple[dict[str, TensorEntry], dict[Path, dict[str, str]]]:
    """INV-3: every tensor of every `model*.safetensors`."""
    names = unindexed_weights(file.name for file in folder.iterdir() if file.is_file())
    others = [name for name in names if name.startswith("model-")]
    if _WHOLE in names and others:
        raise RequestError(
            f"{folder} is ambiguous: it has {_WHOLE} and {others[0]}, and no {INDEX} that says "
            f"which to read; remove one"
        )
    tensors: dict[str, TensorEntry] = {}
    metadata: dict[Path, dict[str, str]] = {}
    for name in names:
        header = read_header(folder / name)
        metadata[folder / name] = header.metadata
        for tensor in header.tensors:
            if tensor.name in tensors:
                raise RequestError(
                    f"tensor {shown(tensor.name)} is in {tensors[tensor.name].file.name} and in "
                    f"{name}; keep one of the two files"
                )
            tensors[tensor.name] = tensor
    return tensors, metadata


def _json_files(folder: Path) -> dict[str, Path]:
    """By name below the folder."""
    files = {file.name: file for file in folder.glob("*.json") if not is_index(file.name)}
    pooling = {file.relative_to(folder).as_posix(): file for file in folder.glob("*/config.json")}
    files |= {name: file for name, file in pooling.items() if is_pooling_config(name)}
    return {name: file for name, file in sorted(files.items()) if file.is_file()}
