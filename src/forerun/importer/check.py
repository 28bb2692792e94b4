"""Whether a model can be loaded, found out before any of its weights are written (F13, TOK-1)."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from forerun.importer.sources import Checkpoint
from forerun.models.config import ConfigReader
from forerun.models.registry import find
from forerun.models.tensor_files import MappedFile, Stored
from forerun.models.weights import Weights
from forerun.tokenizer.tokenizer import Tokenizer

META = torch.device("meta")


def check_model(checkpoint: Checkpoint) -> None:
    """Raises LoadError naming the tensor, config field or tokenizer file at fault.

    The model is built from shapes alone. Tensors that it does not ask for are listed in one
    warning.
    """
    config = ConfigReader(checkpoint.config)
    build = find(config)
    weights = _PlannedWeights(checkpoint)
    build(config, weights)
    weights.finish()
    Tokenizer.load(checkpoint.files)


class _PlannedWeights(Weights):
    """The tensors that an import is going to write."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        paper = _Paper()
        stored = {plan.name: _OnPaper(paper, plan.name, plan.shape) for plan in checkpoint.plans}
        super().__init__(stored, checkpoint.config, _Unplaced())  # type: ignore[arg-type]

    def same(self, path: str, other: str) -> bool:
        """Taken for granted: nobody reads values here, and a load can go on either way."""
        del path, other
        return True


@dataclass(frozen=True, slots=True)
class _Unplaced:
    """A placement on no device, where no kernel is chosen; a root of its own would name kernels."""

    dtype: torch.dtype = torch.float32
    device: torch.device = META
    kernels: None = None


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
