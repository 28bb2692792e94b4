"""The product with an output head in C++: sums of integers, and results in float32.

Rows are rounded to sixteen bits, with a scale each; the weight's codes and terms are exact. A row's
bits depend neither on the rows beside it nor on the number of threads.
"""

import torch
from torch import Tensor

from forerun.kernels.native import library, scratch
from forerun.kernels.native.packed import PackedLinear, unsupported
from forerun.kernels.native.structs import FrHead
from forerun.kernels.operands import Quantised

MOST_BEST = 128  # measured: 0.05 ms a row; each number more is one more comparison an insertion


def why_not(weight: Quantised) -> str | None:
    """The reason that the kernel cannot serve; None if it can."""
    loaded = library.load()
    return library.why_not() if loaded is None else unsupported(loaded, weight)


class NativeHead:
    """Holds the repacked weight; what it was made from is not kept."""

    def __init__(self, weight: Quantised, threads: int) -> None:
        loaded = library.load()
        assert loaded is not None, library.why_not()
        self._library, self._team = loaded, loaded.team(threads)
        self._weight = PackedLinear(loaded, weight)
        self._columns, self._rows = weight.in_features, weight.out_features
        self._struct = FrHead(weight=self._weight.struct)
        self.most_best = min(MOST_BEST, self._rows)  # that `best` finds faster than all are read
        self._room = 0, 0, 0  # rows and best ones of them, and bytes of scratch memory for them

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out] in the dtype of `x`, any float."""
        rows = self._float_rows(x)
        width = rows.shape[0]
        out = torch.empty(width, self._rows, dtype=torch.float32)
        if width:
            lent = self._scratch_for(width, 0)
            self._team.head(self._struct, rows.data_ptr(), width, out.data_ptr(), scratch=lent)
        if x.dim() != 2:
            out = out.view(*x.shape[:-1], self._rows)
        return out if x.dtype == torch.float32 else out.to(x.dtype)

    def best(self, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """The `count` largest of each row [rows, in] in float32, and their int64 ids.

        From the largest down, of equal ones the smaller id first; where fewer are numbers, ids
        are -1. They are those of a call with `x` in float32; at most `most_best`.
        """
        rows = self._float_rows(x)
        width = rows.shape[0]
        values = torch.empty(width, count, dtype=torch.float32)
        ids = torch.empty(width, count, dtype=torch.int32)
        if width:
            self._team.head(
                self._struct,
                rows.data_ptr(),
                width,
                None,
                top=count,
                ids=ids.data_ptr(),
                values=values.data_ptr(),
                scratch=self._scratch_for(width, count),
            )
        return values, ids.long()

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

    def _float_rows(self, x: Tensor) -> Tensor:
        """[n, in] in float32; out of cold caches even an operation that does nothing takes 5 us."""
        rows = x if x.dim() == 2 else x.reshape(-1, self._columns)
        if rows.dtype != torch.float32:
            rows = rows.to(torch.float32)
        return rows if rows.is_contiguous() else rows.contiguous()

    def _scratch_for(self, width: int, count: int) -> int:
        """Its address for this call; it has room for the widest call so far."""
        rows, best, size = self._room
        if width > rows or count > best:
            rows, best = max(width, rows), max(count, best)
            size = self._library.head_scratch(self._columns, rows, best, self._team.threads)
            self._room = rows, best, size
        return scratch.of_thread().reserve(size)
