"""The norm of models over the last dimension, computed in float32."""

from torch import Tensor

from forerun.kernels.select import KernelChoice, rms_norm


class RMSNorm:
    """Root-mean-square norm times `weight`, or times `1 + weight` (`shift`), or bare."""

    def __init__(
        self,
        weight: Tensor | None,
        eps: float,
        *,
        shift: bool = False,
        uniform: bool = False,
        kernels: KernelChoice | None = None,
    ) -> None:
        """
        weight   [dim], or [heads, dim] for a norm of its own a head; None: pure normalisation
        shift    the weight is stored minus one, which is added in float32
        uniform  a row's bits do not depend on how many rows there are
        kernels  which fast paths may serve; None allows all
        """
        self._weight = 1 + weight.float() if shift and weight is not None else weight
        self._norm = rms_norm(self._weight, eps, kernels or KernelChoice(), uniform=uniform)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., dim] to the same shape and dtype."""
        return self._norm(x)

    @property
    def factors(self) -> Tensor | None:
        """What normed rows are multiplied by, in float32; None where it is bare."""
        return None if self._weight is None else self._weight.float()

    @property
    def nbytes(self) -> int:
        """Bytes of parameters held."""
        return 0 if self._weight is None else self._weight.nbytes
