"""The product with one quantised weight in C++, for layers that do not run as one call.

Activations are rounded to sixteen bits a row, the weight's codes and terms are exact, and sums are
float32 in one order: a row's bits depend neither on the rows beside it nor on the number of
threads.
"""

import torch
from torch import Tensor

from forerun.kernels.native import library, scratch
from forerun.kernels.native.packed import PackedLinear, unsupported
from forerun.kernels.native.structs import FrLinear
from forerun.kernels.operands import Quantised

DTYPES = (torch.bfloat16, torch.float32)


def why_not(weight: Quantised, dtype: torch.dtype) -> str | None:
    """The reason that the kernel cannot serve; None if it can. dtype: of the activations."""
    loaded = library.load()
    if loaded is None:
        return library.why_not()
    return unsupported(loaded, weight) if dtype in DTYPES else f"activations are {dtype}"


class NativeLinear:
    """Holds the repacked weight; what it was made from is not kept."""

    def __init__(self, weight: Quantised, threads: int, bias: Tensor | None = None) -> None:
        """bias: [out], added in float32 before the result is rounded"""
        loaded = library.load()
        assert loaded is not None, library.why_not()
        self._library, self._team = loaded, loaded.team(threads)
        self._weight = PackedLinear(loaded, weight, bias)
        self._columns, self._rows = weight.in_features, weight.out_features
        self._parts = (FrLinear * 1)(self._weight.struct)
        self._widest = self._scratch_bytes = 0

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out] in the dtype of `x`: one of `DTYPES`."""
        rows = x.reshape(-1, self._columns).to(torch.float32).contiguous()
        width = rows.shape[0]
        out = torch.empty(width, self._rows, dtype=torch.float32)
        if width > self._widest:
            self._scratch_bytes = self._library.linear_scratch(self._columns, width)
            self._widest = width
        if width:
            lent = scratch.of_thread().reserve(self._scratch_bytes)
            self._team.linear(self._parts, rows.data_ptr(), width, out.data_ptr(), scratch=lent)
        return out.view(*x.shape[:-1], self._rows).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes
