"""Norms over the last dimension, computed in float32."""

from torch import Tensor
from torch.nn import functional

from forerun.kernels.rms_norm.reference import rms_norm


class RMSNorm:
    """Root-mean-square norm times `weight`, or times `1 + weight` (`shift`), or bare."""

    def __init__(self, weight: Tensor | None, eps: float, *, shift: bool = False) -> None:
        """weight [dim]; None: pure normalisation. shift: the table is stored minus one."""
        self._weight = weight if weight is None or not shift else 1 + weight.float()
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """[..., dim] to the same shape and dtype."""
        return rms_norm(x, self._weight, self._eps)

    @property
    def nbytes(self) -> int:
        return 0 if self._weight is None else self._weight.nbytes


class LayerNorm:
    """Mean and variance norm with weight and bias (LIN-7)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, eps: float) -> None:
        self._weight, self._bias, self._eps = weight, bias, eps

    def __call__(self, x: Tensor) -> Tensor:
        """[..., dim] to the same shape and dtype."""
        return functional.layer_norm(x, self._weight.shape, self._weight, self._bias, self._eps)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)
