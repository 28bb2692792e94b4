"""Product with a quantised weight that is dequantised anew for each call; runs on every device.

It is PyTorch's product of dense values, whose rows may differ in their last bits with the number of
rows: what is made of them is compared by the near-tie rule (WID-6).
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from forerun.kernels.dequantise.reference import dequantise
from forerun.kernels.operands import Quantised


@dataclass(frozen=True, slots=True)
class ReferenceLinear:
    """`x @ w.T` with w rounded to the dtype of x: exact to float32 rounding in float32."""

    weight: Quantised

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out] in the dtype of `x`."""
        return functional.linear(x, dequantise(self.weight, x.dtype))

    @property
    def nbytes(self) -> int:
        return 0
