"""The quantisation formats, as data (LIN-3)."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from forerun.base.quantisation import BITS

AFFINE_BITS = {name: BITS[name] for name in ("int4", "int8")}
AFFINE_GROUPS = (32, 64, 128)
BLOCK_SCALED_GROUP = {"nvfp4": 16, "mxfp4": 32, "mxfp8": 32}

GROUPS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    dict.fromkeys(AFFINE_BITS, AFFINE_GROUPS)
    | {name: (group,) for name, group in BLOCK_SCALED_GROUP.items()}
)


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """Groups along the inputs of a linear, with a scale each.

    Affine formats have integer codes, float scales, and zero points or none. The others have codes
    and scales that are small floats: `kernels.dequantise.floats`.
    """

    name: str  # a key of BITS
    group: int  # columns that share a scale, one of GROUPS[name]

    @property
    def affine(self) -> bool:
        return self.name in AFFINE_BITS

    @property
    def bits(self) -> int:
        return BITS[self.name]

    @property
    def words_per_group(self) -> int:
        return self.group * self.bits // 32
