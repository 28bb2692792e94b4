"""Where and how a model's layers compute: decided once by the composition root, handed down."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from forerun.kernels.select import KernelChoice, beside
from forerun.nn.linear import LinearWeights


@dataclass(frozen=True, slots=True)
class Placement:
    """Device, dtype of activations and caches, and which fast paths may serve."""

    dtype: torch.dtype
    device: torch.device
    kernels: KernelChoice = field(default_factory=KernelChoice)

    def settled(self, linears: Iterable[LinearWeights]) -> "Placement":
        """This with the kernels that suit `linears`, each a product of its own, together."""
        held = (
            (None if isinstance(part.weight, Tensor) else part.weight.data, part.weight.nbytes)
            for part in linears
        )
        return replace(self, kernels=beside(held, self.dtype, self.kernels))
