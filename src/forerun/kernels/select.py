"""The one place that chooses which implementation serves an operation (KER-1).

Choices are made when a layer is built, so that a forward branches on nothing.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from forerun.kernels.linear_affine.reference import ReferenceLinear
from forerun.kernels.operands import AffineWeight


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Which fast paths may serve; built once by the composition root and handed down."""

    cpu_kernels: bool = True  # False: references only


class LinearKernel(Protocol):
    """A product with a weight in whatever layout serves it best."""

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out] in the dtype of `x`."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of weight that the kernel holds."""
        ...


def affine_linear(weight: AffineWeight, dtype: torch.dtype, choice: KernelChoice) -> LinearKernel:
    """The kernel for products of `dtype` activations with `weight`."""
    del dtype, choice
    return ReferenceLinear(weight)
