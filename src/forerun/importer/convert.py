"""Weights from their blocks in a file to the arrays that the store holds, as pure functions.

A stored weight of the quantised kind is scale * q + bias, q unsigned, one scale and bias for 32
columns (GUF-2). Lowest bits of a word hold the lowest column.
"""

from dataclasses import dataclass
from enum import Enum

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

GROUP = 32
FP16_MAX = 65504.0

Bytes = NDArray[np.uint8]


class BlockKind(Enum):
    """Block layouts whose weights keep their values as affine groups (GUF-1)."""

    Q4_0 = "Q4_0"
    Q4_1 = "Q4_1"
    Q8_0 = "Q8_0"

    @property
    def format(self) -> str:
        return "int8" if self is BlockKind.Q8_0 else "int4"

    @property
    def bits(self) -> int:
        return 8 if self is BlockKind.Q8_0 else 4

    @property
    def layout(self) -> np.dtype[np.void]:
        d, m = ("d", "<f2"), ("m", "<f2")
        nibbles, whole = ("q", "u1", (GROUP // 2,)), ("q", "u1", (GROUP,))
        fields = {
            BlockKind.Q4_0: [d, nibbles],
            BlockKind.Q4_1: [d, m, nibbles],
            BlockKind.Q8_0: [d, whole],
        }
        return np.dtype(fields[self])


@dataclass(frozen=True, slots=True)
class GroupTerms:
    """Scale and bias of every group, [rows, groups], both float16 or both float32."""

    scale: NDArray[np.floating]
    bias: NDArray[np.floating]

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.scale).all() and np.isfinite(self.bias).all())


def group_terms(rows: Bytes, kind: BlockKind) -> GroupTerms:
    """The terms of whole rows of blocks.

    float32 where -8 * d or -128 * d leaves float16's range. Both products are exact: a power of
    two moves the exponent only, and a subnormal only grows.
    """
    blocks = rows.view(kind.layout)
    scale = blocks["d"].astype(np.float16)
    if kind is BlockKind.Q4_1:
        return GroupTerms(scale, blocks["m"].astype(np.float16))
    zero = -8.0 if kind is BlockKind.Q4_0 else -128.0
    wide = scale.astype(np.float32)
    bias = wide * np.float32(zero)
    if np.abs(bias, where=np.isfinite(bias), out=np.zeros_like(bias)).max(initial=0) > FP16_MAX:
        return GroupTerms(wide, bias)
    return GroupTerms(scale, bias.astype(np.float16))


def pack_words(rows: Bytes, kind: BlockKind) -> NDArray[np.uint32]:
    """The quantised values of whole rows of blocks as [rows, columns * bits / 32] words."""
    values = rows.view(kind.layout)["q"]
    if kind is BlockKind.Q8_0:
        packed = values ^ np.uint8(0x80)  # two's complement to q + 128
    else:
        low, high = values & np.uint8(15), values >> np.uint8(4)  # columns 0..15, then 16..31
        columns = np.concatenate([low, high], axis=-1)
        packed = columns[..., 0::2] | columns[..., 1::2] << np.uint8(4)
    return np.ascontiguousarray(packed).reshape(rows.shape[0], -1).view("<u4")


def widen(rows: Bytes, kind: GGMLQuantizationType) -> NDArray[np.float32]:
    """[rows, columns] values of any layout that the gguf package reads."""
    values: NDArray[np.float32] = dequantize(rows, kind)
    return values


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of `values` rounded to bfloat16, to nearest and ties to even. No NaN comes in."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype("<u2")


def unpermuted_rows(rows: int, heads: int) -> NDArray[np.intp]:
    """Which row of a GGUF llama q or k projection is row i of the original (GUF-4).

    The file interleaves the two halves of each head: its row 2j is the original's j, 2j + 1 the
    original's j + d/2.
    """
    size = rows // heads
    within = np.arange(size).reshape(size // 2, 2).T.reshape(-1)
    return (np.arange(heads)[:, None] * size + within).reshape(-1)


def without_one(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """A gemma norm as safetensors hold it, zero-centred; computed in float32 (GUF-5)."""
    return weight - np.float32(1)


# Where all of these bits are set, a value is infinite or no number; of E4M3 only the latter.
_EXPONENT = {
    "F8_E4M3": ("u1", 0x7F),
    "BF16": ("<u2", 0x7F80),
    "F16": ("<u2", 0x7C00),
    "F32": ("<u4", 0x7F80_0000),
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
}


def is_finite(data: Bytes, dtype: str) -> bool:
    """Whether raw little-endian values hold no NaN and no infinity; of types without them: True."""
    if dtype not in _EXPONENT:
        return True
    item, exponent = _EXPONENT[dtype]
    bits = data.view(item) & np.dtype(item).type(exponent)
    return not bool((bits == exponent).any())
