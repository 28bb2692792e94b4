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
    *,
    prefix: str = "",
    own_draft: bool = True,
) -> TargetModel:
    """Build the model that config.json describes from the tensors in `files`.

    files      safetensors files; one that is named twice is opened once
    progress   hears completed and total bytes
    prefix     what the names of its tensors begin with: `DRAFT` for a draft that is such a model
    own_draft  False where the checkpoint's own head would not be bound: it stays in its file

    Dense weights that are stored in the model's dtype stay in the mapped file; everything else is
    copied, one fold at a time. Raises LoadError naming the field, tensor or file at fault.
    On the `meta` device this reads no weights: it checks that every tensor is there, in shape.
    """
    reader = ConfigReader(config)
    build = find(reader)
    stored = open_tensors(files)
    own = {
        name.removeprefix(prefix): entry
        for name, entry in stored.items()
        if name.startswith(prefix) and (prefix or not name.startswith(DRAFT))
    }
    weights = Weights(own, config, placement, progress, own_draft=own_draft)
    model = build(reader, weights)
    weights.finish()
    return model
