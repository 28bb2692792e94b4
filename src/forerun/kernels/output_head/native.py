"""The product with an output head in C++: sums of integers, and results in float32.

Rows keep sixteen bits, in groups of 32 columns; the weight's codes and terms are exact. A row's
bits depend neither on the rows beside it nor on the number of threads.
"""

import torch
from torch import Tensor

from forerun.kernels.native import library
from forerun.kernels.native.library import FrHead
from forerun.kernels.native.packed import PackedLinear, unsupported
from forerun.kernels.native.scratch import Scratch
from forerun.kernels.operands import AffineWeight


def why_not(weight: AffineWeight) -> str | None:
    """The reason that the kernel cannot serve; None if it can."""
    loaded = library.load()
    return library.why_not() if loaded is None else unsupported(loaded, weight)


class NativeHead:
    """Holds the repacked weight; what it was made from is not kept."""

    def __init__(self, weight: AffineWeight, threads: int) -> None:
        loaded = library.load()
        assert loaded is not None, library.why_not()
        self._library, self._team = loaded, loaded.team(threads)
        self._weight, self._scratch = PackedLinear(loaded, weight), Scratch()
        self._columns, self._rows = weight.in_features, weight.out_features
        self._struct = FrHead(weight=self._weight.struct)
        self._widest = 0

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out] in the dtype of `x`, any float."""
        rows = x.reshape(-1, self._columns).to(torch.float32).contiguous()
        width = rows.shape[0]
        out = torch.empty(width, self._rows, dtype=torch.float32)
        if width > self._widest:
            self._make_room(width)
        if width:
            scratch = self._scratch.address
            self._team.head(self._struct, rows.data_ptr(), width, out.data_ptr(), scratch=scratch)
        return out.view(*x.shape[:-1], self._rows).to(x.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows [n, in] of the weight in float32, for int64 ids [n]: a table that is tied to it."""
        asked = ids.tolist()
        if asked and not 0 <= min(asked) <= max(asked) < self._rows:
            raise IndexError(f"ids of {min(asked)} to {max(asked)} in a table of {self._rows} rows")
        ids = ids.contiguous()
        values = torch.empty(len(asked), self._columns, dtype=torch.float32)
        struct = self._weight.struct
        self._library.unpack_rows(struct, ids.data_ptr(), len(asked), values.data_ptr())
        return values

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def _make_room(self, width: int) -> None:
        needed = self._library.head_scratch(self._columns, width, 0, self._team.threads)
        self._scratch.reserve(needed)
        self._widest = width
