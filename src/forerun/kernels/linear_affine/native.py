"""The product with an affine weight in C++: activations as integer codes, sums as integers.

Activations are rounded to eight bits, in groups of 32 columns; `fine` keeps sixteen, for twice the
products. The weight's own codes and terms are exact. A row's result does not depend on the rows
beside it, nor on the number of threads.
"""

import torch
from torch import Tensor

from forerun.kernels.native import library
from forerun.kernels.native.library import FrHead, FrLinear, Library
from forerun.kernels.native.scratch import Scratch
from forerun.kernels.operands import AffineWeight

ALIGNMENT = 64  # bytes, of a cache line


def why_not(weight: AffineWeight, dtype: torch.dtype, *, fine: bool) -> str | None:
    """The reason that the kernel cannot serve; None if it can."""
    loaded = library.load()
    if loaded is None:
        return library.why_not()
    if dtype != torch.bfloat16 and not fine:
        return f"activations of eight bits would lose what {dtype} was asked for"
    return unsupported(loaded, weight)


def unsupported(loaded: Library, weight: AffineWeight) -> str | None:
    """The reason that a weight cannot be packed; None if it can."""
    if weight.words.device.type != "cpu":
        return f"weights are on {weight.words.device}"
    if not loaded.linear_supported(weight.in_features, weight.group, weight.bits):
        return (
            f"int{weight.bits} weights of {weight.in_features} columns in groups of {weight.group}"
        )
    return None


class PackedLinear:
    """A weight in the layout that the kernels read; what it was made from is not kept."""

    def __init__(self, loaded: Library, weight: AffineWeight, bias: Tensor | None = None) -> None:
        """bias: [out], added to the product; kept in float32."""
        rows, columns, group, bits = (
            *(weight.out_features, weight.in_features),
            *(weight.group, weight.bits),
        )
        scales, zero_terms = _float32(weight.scale), None
        if weight.bias is not None:
            zero_terms = _float32(weight.bias)
        wide = not (_is_half(scales) and (zero_terms is None or _is_half(zero_terms)))
        size = loaded.packed_bytes(rows, columns, group, bits, wide_terms=wide)
        self._packed = _aligned(size)
        self._bias = None if bias is None else _float32(bias)
        self.struct = FrLinear(
            packed=self._packed.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            rows=rows,
            columns=columns,
            group=group,
            bits=bits,
            wide_terms=int(wide),
        )
        words = weight.words.contiguous()
        loaded.pack(
            words.data_ptr(),
            scales.data_ptr(),
            None if zero_terms is None else zero_terms.data_ptr(),
            self.struct,
            self._packed.data_ptr(),
        )

    @property
    def nbytes(self) -> int:
        return self._packed.nbytes + (0 if self._bias is None else self._bias.nbytes)


class NativeLinear:
    """Products of rows of any float dtype; they are float32 on the way."""

    def __init__(self, weight: AffineWeight, threads: int, *, fine: bool) -> None:
        loaded = library.load()
        assert loaded is not None, library.why_not()
        self._library, self._team = loaded, loaded.team(threads)
        self._weight, self._scratch = PackedLinear(loaded, weight), Scratch()
        self._columns, self._rows = weight.in_features, weight.out_features
        self._parts = (FrLinear * 1)(self._weight.struct)
        self._head = FrHead(weight=self._weight.struct, fine=1) if fine else None
        self._widest = 0

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out] in the dtype of `x`."""
        rows = x.reshape(-1, self._columns).to(torch.float32).contiguous()
        width = rows.shape[0]
        out = torch.empty(width, self._rows, dtype=torch.float32)
        if width > self._widest:
            self._make_room(width)
        if self._head is not None:
            self._team.head(
                self._head, rows.data_ptr(), width, out.data_ptr(), scratch=self._scratch.address
            )
        elif width:
            self._team.linear(
                self._parts, rows.data_ptr(), width, out.data_ptr(), scratch=self._scratch.address
            )
        return out.view(*x.shape[:-1], self._rows).to(x.dtype)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def _make_room(self, width: int) -> None:
        needed = self._library.linear_scratch(self._columns, width)
        if self._head is not None:
            needed = self._library.head_scratch(self._columns, width, 0, self._team.threads)
        self._scratch.reserve(needed)
        self._widest = width


def _float32(terms: Tensor) -> Tensor:
    return terms.to(torch.float32).contiguous()


def _is_half(terms: Tensor) -> bool:
    """Whether half precision holds every one of them."""
    return torch.equal(terms.half().float(), terms)


def _aligned(size: int) -> Tensor:
    """`size` bytes from the start of a cache line on."""
    memory = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
    start = -memory.data_ptr() % ALIGNMENT
    return memory[start : start + size]
