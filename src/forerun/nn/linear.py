"""A linear layer over a dense or a quantised weight (LIN-1, LIN-4)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.contract.model import Best
from forerun.kernels.select import (
    KernelChoice,
    LinearKernel,
    NativeHead,
    output_head,
    quantised_linear,
)
from forerun.quant.packed import PackedWeight, Weight


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """A weight with its bias, of which nothing has been made yet."""

    weight: Weight
    bias: Tensor | None  # [out] in the dtype of the activations


def chosen_rows(part: LinearWeights, which: slice | Tensor) -> LinearWeights:
    """Some of the outputs of a linear: views for a slice, copies for int64 indices."""
    weight = part.weight
    rows = weight.rows(which) if isinstance(weight, PackedWeight) else weight[which]
    return LinearWeights(rows, None if part.bias is None else part.bias[which])


def stack_parts(stack: LinearWeights, count: int) -> list[LinearWeights]:
    """The equal parts of a stack, as views."""
    rows = stack.weight.shape[0] // count
    return [chosen_rows(stack, slice(at * rows, (at + 1) * rows)) for at in range(count)]


class Linear:
    """`x @ weight.T`, times the weight's global scale, plus `bias`."""

    def __init__(
        self,
        weight: Weight,
        bias: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
        kernels: KernelChoice | None = None,
        shared: bool = False,
        fused: bool = False,
    ) -> None:
        """Take the weight over; a quantised one may be repacked, and is then not kept.

        bias     [out] in the dtype of the activations
        dtype    of the activations; needed for a quantised weight, a dense one has its own
        kernels  which fast paths may serve; None allows all
        shared   the weight is another layer's, which counts its bytes
        fused    it is the head behind layers that run in one call
        """
        self.out_features, self.in_features = weight.shape
        self._bias, self._global_scale = bias, None
        given = weight.dtype if isinstance(weight, Tensor) else dtype
        assert given is not None, "a quantised weight does not say what its activations are"
        self.dtype = given  # of the activations
        if isinstance(weight, Tensor):
            self._product: LinearKernel = _DenseProduct(weight, bias)
            self._bias = None
        else:
            choose = output_head if fused else quantised_linear
            self._product = choose(weight.data, given, kernels or KernelChoice())
            self._global_scale = weight.global_scale
        self._native_head: NativeHead | None = None  # where what it answers is the whole product
        if isinstance(self._product, NativeHead) and self._global_scale is None:
            self._native_head = self._product
        repacked = self._product.nbytes
        self._weight_bytes = repacked if repacked or shared else weight.nbytes
        self._bias_bytes = 0 if bias is None else bias.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out], both of the layer's dtype. The result is the caller's own."""
        out = self._product(x)
        if self._global_scale is not None:
            out = torch.mul(out, self._global_scale, out=out)  # rounds once, whatever the dtypes
        return out if self._bias is None else out.add_(self._bias)

    def best(self, x: Tensor, count: int) -> Best | None:
        """The `count` largest of each row of the product with x [rows, in], without the others.

        None where the kernel has no fast way to them, or they are not yet what is returned.
        """
        head = self._native_head
        if head is None or self._bias is not None or self.dtype != torch.float32:
            return None
        return Best(*head.best(x, count)) if count <= head.most_best else None

    @property
    def table(self) -> Callable[[Tensor], Tensor] | None:
        """Makes rows [n, in] in float32 of int64 ids [n], where the kernel holds them as values."""
        return None if self._native_head is None else self._native_head.rows

    @property
    def nbytes(self) -> int:
        """Bytes of parameters held."""
        return self._weight_bytes + self._bias_bytes


@dataclass(frozen=True, slots=True)
class _DenseProduct:
    """The product with a weight in the dtype of the activations, bias included."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)

    @property
    def nbytes(self) -> int:
        return 0
