"""From a checkpoint's files to a model (05 LOD-1)."""

from collections.abc import Iterable, Mapping
from pathlib import Path

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
