"""A linear layer over a dense or a quantised weight (LIN-1, LIN-4)."""

import torch
from torch import Tensor
from torch.nn import functional

from forerun.kernels.select import KernelChoice, affine_linear
from forerun.quant.packed import PackedWeight, Weight


class Linear:
    """`x @ weight.T`, times the weight's global scale, plus `bias`."""

    def __init__(
        self,
        weight: Weight,
        bias: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
        kernels: KernelChoice | None = None,
    ) -> None:
        """Take the weight over; a quantised one may be repacked, and is then not kept.

        dtype    of the activations; needed for a quantised weight, a dense one has its own
        kernels  which fast paths may serve; None allows all
        """
        self.out_features, self.in_features = weight.shape
        self._bias = bias
        self._dense: Tensor | None = None
        if isinstance(weight, PackedWeight):
            assert dtype is not None
            self._kernel = affine_linear(weight.data, dtype, kernels or KernelChoice())
            self._global_scale = weight.global_scale
        else:
            self._dense = weight

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out], both of the layer's dtype."""
        if self._dense is not None:
            return functional.linear(x, self._dense, self._bias)
        out = self._kernel(x)
        if self._global_scale is not None:
            out = torch.mul(out, self._global_scale, out=out)
        return out if self._bias is None else out + self._bias

    @property
    def nbytes(self) -> int:
        """Bytes of parameters held."""
        held = self._kernel.nbytes if self._dense is None else self._dense.nbytes
        return held + (0 if self._bias is None else self._bias.nbytes)
