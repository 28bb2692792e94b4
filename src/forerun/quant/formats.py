"""The quantisation formats, as data (LIN-3)."""

from dataclasses import dataclass

BITS = {"int4": 4, "int8": 8}
GROUPS = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class QuantFormat:
    """Affine groups along the inputs of a linear."""

    name: str  # a key of BITS
    group: int  # columns that share a scale, one of GROUPS

    @property
    def bits(self) -> int:
        return BITS[self.name]

    @property
    def words_per_group(self) -> int:
        return self.group * self.bits // 32
