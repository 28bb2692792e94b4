"""Product with an affine weight that is dequantised anew for each call; runs on every device."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from forerun.kernels.dequantise.reference import dequantise
from forerun.kernels.operands import Affine


@dataclass(frozen=True, slots=True)
class ReferenceLinear:
    """`x @ w.T` with w rounded to the dtype of x: exact to float32 rounding in float32."""

    weight: Affine

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out] in the dtype of `x`."""
        return functional.linear(x, dequantise(self.weight, x.dtype))

    @property
    def nbytes(self) -> int:
        return 0
