"""Folders of tensors as publishers lay them out, and what an import makes of them."""

import io
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load, save_file
from torch import Tensor

from forerun.importer.sources import Checkpoint, folder_source
from forerun.importer.write import write_tensors
from forerun.quant.formats import QuantFormat
from forerun.quant.stored import packed_weight
from forerun.store.headers import TensorEntry

Shape = tuple[int, ...]


def entries(**tensors: tuple[str, Shape]) -> dict[str, TensorEntry]:
    """Headers without files, by name: a type and a shape each."""
    return {
        name: TensorEntry(name, dtype, shape, Path("weights"), 0, 0)
        for name, (dtype, shape) in tensors.items()
    }


def write_folder(folder: Path, tensors: Mapping[str, Tensor], **config: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    owned = {name: tensor.clone() for name, tensor in tensors.items()}
    save_file(owned, folder / "model.safetensors")
    return folder


def written(checkpoint: Checkpoint) -> tuple[dict[str, Tensor], dict[str, dict[str, str]]]:
    """Every tensor that an import would write, and the metadata of every blob."""
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, dict[str, str]] = {}
    for blob in checkpoint.blobs:
        sink = io.BytesIO()
        write_tensors(checkpoint.open(blob), sink)
        data = sink.getvalue()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        metadata[blob.name] = header.get("__metadata__", {})
        tensors |= load(data)
    return tensors, metadata


def imported(
    folder: Path, tensors: Mapping[str, Tensor], *, quantize: str = "", **config: object
) -> tuple[dict[str, Tensor], dict[str, dict[str, str]]]:
    """What becomes of a folder of these tensors."""
    write_folder(folder, tensors, **config)
    return written(folder_source(folder, quantize=quantize).checkpoint)


def values(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], name: str) -> Tensor:
    """[rows, columns] float32 values of a quantised weight of the store."""
    form = QuantFormat(metadata["quant_type"], int(metadata["group_size"]))
    parts = [tensors.get(name + suffix) for suffix in ("", ".scale", ".bias")]
    words, scale, bias = (None if part is None else part.flatten(0, -2) for part in parts)
    assert words is not None
    assert scale is not None
    factor = tensors.get(f"{name}.global_scale")
    weight = packed_weight(words, scale, bias, form, global_scale=factor)
    return weight.dequantise(torch.float32)
