"""Affine weights in the layout that the C++ kernels read."""

import torch
from torch import Tensor

from forerun.kernels.native.library import FrLinear, Library
from forerun.kernels.operands import AffineWeight

ALIGNMENT = 64  # bytes, of a cache line


def unsupported(library: Library, weight: AffineWeight) -> str | None:
    """The reason that a weight cannot be packed; None if it can."""
    columns, group, bits = weight.in_features, weight.group, weight.bits
    if weight.words.device.type != "cpu":
        return f"weights are on {weight.words.device}"
    if not library.linear_supported(columns, group, bits):
        return f"there are int{bits} weights of {columns} columns in groups of {group}"
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
