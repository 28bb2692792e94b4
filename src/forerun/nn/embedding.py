"""Token embedding over a dense or a quantised table, and the tied head that shares it (LIN-5)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from forerun.kernels.select import KernelChoice
from forerun.nn.linear import Linear
from forerun.quant.packed import Weight


class Embedding:
    """Rows of a table. A quantised one stays as stored: only the rows asked for are dequantised."""

    def __init__(
        self,
        weight: Weight,
        *,
        dtype: torch.dtype | None = None,
        kernels: KernelChoice | None = None,
    ) -> None:
        """
        dtype    of the vectors; needed for a quantised table, a dense one has its own
        kernels  which fast paths may serve the tied head; None allows all
        """
        given = weight.dtype if isinstance(weight, Tensor) else dtype
        assert given is not None, "a quantised table does not say what its vectors are"
        self._weight: Weight | None = weight
        self._dtype, self._kernels = given, kernels
        self._gather: Callable[[Tensor], Tensor] | None = None  # from a head that holds the table
        self.rows, self.width = weight.shape

    def __call__(self, ids: Tensor) -> Tensor:
        """[...] int64 ids to [..., width] vectors, global scale included."""
        if self._gather is not None:
            return self._gather(ids.flatten()).view(*ids.shape, self.width)
        assert self._weight is not None, "whoever gave the table away can gather from it"
        if isinstance(self._weight, Tensor):
            return functional.embedding(ids, self._weight)
        rows = self._weight.rows(ids.flatten()).dequantise(self._dtype)
        return rows.view(*ids.shape, self.width)

    def as_linear(self, *, fused: bool = False) -> Linear:
        """The tied output head: the same table as a linear, [..., width] to [..., rows].

        A fast path holds its own copy of a quantised table in another layout. The table as stored
        is then read by the embedding alone, so that of a mapped file only the rows of tokens in
        use are resident. Where float32 vectors can be had from that copy, it serves both.
        """
        assert self._weight is not None, "the table has been given away"
        linear = Linear(
            self._weight, dtype=self._dtype, kernels=self._kernels, shared=True, fused=fused
        )
        if linear.table is not None and self._dtype == torch.float32:
            self._gather, self._weight = linear.table, None
        return linear

    @property
    def nbytes(self) -> int:
        """Bytes of parameters held."""
        return 0 if self._weight is None else self._weight.nbytes
