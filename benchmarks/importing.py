"""Models for benchmarks, made as `forerun create` makes them, in a store of their own."""

import json
import os
from pathlib import Path

from safetensors.torch import save_file

from benchmarks.contenders import dequantised
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.protocol.imports import CreateRequest
from forerun.store import manifest as kinds
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel


def imported(
    models: Path, name: str, folder: Path, *, quantize: str = "", modelfile: str = "FROM ."
) -> StoredModel:
    """The model `name` of the store at `models`; created from `folder` unless it is there."""
    store = Store(models)
    if not store.exists(ModelName.parse(name)):
        source = str(folder.resolve())
        asked = CreateRequest(name=name, modelfile=modelfile, folder=source, quantize=quantize)
        with open(os.devnull, "wb") as unheard:
            create(asked, store, Reporter(unheard.fileno()))
    return store.get(ModelName.parse(name))


def weight_bytes(model: StoredModel) -> dict[str, int]:
    """What each tensor takes on disk, by name, its scales and the file's header included."""
    return {layer.name: layer.blob.size for layer in model.tensors}


def write_source(model: StoredModel, folder: Path) -> dict[str, int]:
    """A stored model as a folder of bfloat16 weights, dequantised; how many numbers each has."""
    weights = dequantised(model)
    folder.mkdir(parents=True, exist_ok=True)
    for layer in model.manifest.of_type(kinds.JSON):
        if layer.name.startswith(kinds.DRAFT_FOLDER):
            continue
        (folder / layer.name).write_bytes(model.read(layer))
    config = {**model.json("config.json"), "dtype": "bfloat16"}
    config.pop("torch_dtype", None)  # the field's older name
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return {name: values.numel() for name, values in weights.items()}
