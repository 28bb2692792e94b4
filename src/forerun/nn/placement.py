"""Where and how a model's layers compute: decided once by the composition root, handed down."""

from dataclasses import dataclass, field

import torch

from forerun.kernels.select import KernelChoice


@dataclass(frozen=True, slots=True)
class Placement:
    """Device, dtype of activations and caches, and which fast paths may serve."""

    dtype: torch.dtype
    device: torch.device
    kernels: KernelChoice = field(default_factory=KernelChoice)
