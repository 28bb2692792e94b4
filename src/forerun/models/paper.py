"""Whether a model could be loaded, from its config and the shapes of its tensors alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from forerun.contract.model import TargetModel
from forerun.models.config import ConfigReader
from forerun.models.registry import find
from forerun.models.tensor_files import MappedFile, Stored
from forerun.models.weights import Weights
from forerun.nn.placement import Placement

META = torch.device("meta")


Shapes = Mapping[str, tuple[int, ...]]


def check_shapes(config: Mapping[str, object], shapes: Shapes) -> None:
    """Build the model on no device. Raises LoadError naming the tensor or config field at fault.

    shapes  of every tensor as a model sees it: a quantised one by the values that it stands for

    Tensors that the model does not ask for are listed in one warning.
    """
    weights = PlannedWeights(config, shapes)
    _built(config, weights)
    weights.finish()


def on_paper(config: Mapping[str, object], shapes: Shapes) -> TargetModel:
    """One of a pair of target and draft on no device, without the head of its own.

    LoadError and `shapes` as in `check_shapes`; tensors that it does not ask for pass in silence.
    """
    return _built(config, PlannedWeights(config, shapes, own_draft=False))


def _built(config: Mapping[str, object], weights: Weights) -> TargetModel:
    reader = ConfigReader(config)
    return find(reader)(reader, weights)


class PlannedWeights(Weights):
    """Tensors that are not written yet, or not to be read."""

    def __init__(
        self, config: Mapping[str, object], shapes: Shapes, *, own_draft: bool = True
    ) -> None:
        paper = _Paper()
        stored = {name: _OnPaper(paper, name, shape) for name, shape in shapes.items()}
        super().__init__(stored, config, Placement(torch.float32, META), own_draft=own_draft)

    def same(self, path: str, other: str) -> bool:
        """Taken for granted: nobody reads values here, and a load can go on either way."""
        del path, other
        return True


class _Paper(MappedFile):
    """A file that is not written yet."""

    def __init__(self) -> None:
        self.path = Path()
        self.size = 0
        self.metadata = {}


@dataclass(frozen=True, slots=True)
class _OnPaper(Stored):
    """A tensor before its conversion: its values as a model sees them have this shape."""

    def read(self) -> Tensor:
        return torch.empty(self.shape, device=META)
