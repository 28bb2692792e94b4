"""Token embedding over a dense or a quantised table, and the tied head that shares it (LIN-5)."""

import torch
from torch import Tensor
from torch.nn import functional

from forerun.kernels.select import KernelChoice
from forerun.nn.linear import Linear
from forerun.quant.packed import Weight


class Embedding:
    """Rows of a table."""

    def __init__(
        self,
        weight: Weight,
        *,
        dtype: torch.dtype | None = None,
        kernels: KernelChoice | None = None,
    ) -> None:
        self._weight = weight
        self._dtype = weight.dtype if isinstance(weight, Tensor) else dtype
        assert self._dtype is not None
        self._kernels = kernels
        self.rows, self.width = weight.shape

    def __call__(self, ids: Tensor) -> Tensor:
        """[...] int64 ids to [..., width] vectors."""
        if isinstance(self._weight, Tensor):
            return functional.embedding(ids, self._weight)
        assert self._dtype is not None
        rows = self._weight.rows(ids.flatten()).dequantise(self._dtype)
        return rows.view(*ids.shape, self.width)

    def as_linear(self) -> Linear:
        """The tied output head: the same table as a linear [..., width] to [..., rows]."""
        return Linear(self._weight, dtype=self._dtype, kernels=self._kernels)

    @property
    def nbytes(self) -> int:
        """Bytes of parameters held."""
        if isinstance(self._weight, Tensor):
            return self._weight.nbytes
        data = self._weight.data
        return sum(t.nbytes for t in (data.words, data.scale, data.bias) if t is not None)
