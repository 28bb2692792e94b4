"""Quantised weights in the layout that the C++ kernels read, which is affine."""

from collections.abc import Callable

import torch
from torch import Tensor

from forerun.kernels.dequantise.affine_form import as_affine, why_not
from forerun.kernels.native.library import Library
from forerun.kernels.native.structs import FrLinear
from forerun.kernels.native.weight_memory import weight_memory
from forerun.kernels.operands import (
    AffineWeight,
    BiasedLinear,
    BlockScaledWeight,
    Quantised,
    RepackedWeight,
)

Take = Callable[[int], Tensor]  # so many bytes, from the start of a cache line on


def unsupported(library: Library, weight: Quantised) -> str | None:
    """The reason that a weight cannot be packed; None if it can."""
    columns, group, bits = weight.in_features, weight.group, weight.bits
    if weight.device.type != "cpu":
        return f"weights are on {weight.device}"
    if isinstance(weight, BlockScaledWeight):
        reason = why_not(weight)
        if reason is not None:
            return reason
        bits = 8  # of its affine form
    if not library.linear_supported(columns, group, bits):
        return f"there are int{bits} weights of {columns} columns in groups of {group}"
    return None


def repacked(loaded: Library, weight: AffineWeight, take: Take = weight_memory) -> RepackedWeight:
    """The weight in the layout that the kernels read; what it was made from is not kept."""
    scales, zero_terms = _float32(weight.scale), None
    if weight.bias is not None:
        zero_terms = _float32(weight.bias)
    wide = not (_is_half(scales) and (zero_terms is None or _is_half(zero_terms)))
    shape = (weight.out_features, weight.in_features, weight.group, weight.bits)
    data = take(loaded.packed_bytes(*shape, wide_terms=wide))
    made, words = RepackedWeight(data, *shape, wide), weight.words.contiguous()
    loaded.pack(
        words.data_ptr(),
        scales.data_ptr(),
        None if zero_terms is None else zero_terms.data_ptr(),
        _struct(made, None),
        data.data_ptr(),
    )
    return made


class PackedLinear:
    """A weight in the layout that the kernels read, and its bias."""

    def __init__(
        self,
        loaded: Library,
        weight: Quantised,
        bias: Tensor | None = None,
        take: Take = weight_memory,
    ) -> None:
        """
        bias  [out], added to the product; kept in float32
        take  gives the memory, where the weight is not in that layout yet
        """
        if not isinstance(weight, RepackedWeight):
            weight = repacked(loaded, as_affine(weight), take)
        self.weight = weight
        self._bias = None if bias is None else _float32(bias)
        self.struct = _struct(weight, self._bias)
        wide, shape = weight.wide_terms, (weight.out_features, weight.in_features)
        size = loaded.packed_bytes(*shape, weight.group, weight.bits, wide_terms=wide)
        assert weight.data.is_contiguous(), "the kernels read one stream of bytes"
        assert weight.data.nbytes == size, f"{weight.data.nbytes} bytes instead of {size}"

    @property
    def nbytes(self) -> int:
        return self.weight.data.nbytes + (0 if self._bias is None else self._bias.nbytes)


class Kept:
    """What the structs of a layer point to, for as long as this lives."""

    def __init__(self, loaded: Library, take: Take = weight_memory) -> None:
        """take: gives the memory of repacked weights."""
        self._loaded, self._take = loaded, take
        self._parts: list[PackedLinear | Tensor] = []

    def linear(self, part: BiasedLinear | None) -> FrLinear:
        """Repacked; what it was made from is not kept. Without rows for None."""
        if part is None:
            return FrLinear()
        packed = PackedLinear(self._loaded, part.weight, part.bias, self._take)
        self._parts.append(packed)
        return packed.struct

    def address(self, part: Tensor | None) -> int | None:
        """Of a float32 tensor's numbers, one row after the other."""
        if part is None:
            return None
        assert part.dtype == torch.float32, part.dtype
        rows = part.contiguous()
        self._parts.append(rows)
        return rows.data_ptr()

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)


def _struct(weight: RepackedWeight, bias: Tensor | None) -> FrLinear:
    return FrLinear(
        packed=weight.data.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        rows=weight.out_features,
        columns=weight.in_features,
        group=weight.group,
        bits=weight.bits,
        wide_terms=int(weight.wide_terms),
    )


def _float32(terms: Tensor) -> Tensor:
    return terms.to(torch.float32).contiguous()


def _is_half(terms: Tensor) -> bool:
    """Whether half precision holds every one of them."""
    return torch.equal(terms.half().float(), terms)
