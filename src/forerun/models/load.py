"""From a checkpoint's files to a model (05 LOD-1)."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from forerun.base.errors import LoadError
from forerun.contract.model import TargetModel
from forerun.models.config import ConfigReader
from forerun.models.registry import find
from forerun.models.tensor_files import open_tensors
from forerun.models.weights import Progress, Weights
from forerun.nn.placement import Placement

DRAFT = "draft."  # tensors of a draft that shares the manifest (07 CFG-1)


def load_model(
    config: Mapping[str, object],
    files: Iterable[Path],
    placement: Placement,
    progress: Progress | None = None,
) -> TargetModel:
    """Build the model that config.json describes from the tensors in `files`.

    files     safetensors files; one that is named twice is opened once
    progress  hears completed and total bytes

    Dense weights that are stored in the model's dtype stay in the mapped file; everything else is
    copied, one fold at a time. Raises LoadError naming the field, tensor or file at fault.
    On the `meta` device this reads no weights: it checks that every tensor is there, in shape.
    """
    reader = ConfigReader(config)
    build = find(reader)
    stored = open_tensors(files)
    target = {name: entry for name, entry in stored.items() if not name.startswith(DRAFT)}
    weights = Weights(target, config, placement, progress)
    model = build(reader, weights)
    weights.finish()
    return model


def load_folder(folder: Path, placement: Placement) -> TargetModel:
    """The model in a folder as Hugging Face repositories have it, without an import."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{folder / 'config.json'} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise LoadError(f"{folder / 'config.json'} must hold a JSON object")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise LoadError(f"{folder} holds no .safetensors file")
    return load_model(config, files, placement)
