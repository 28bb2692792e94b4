"""The types that weights are quantised to (MF-7), and which rows they fit (POL-4)."""

from typing import Final

SOURCE: Final = ""  # in place of a type: the values stay as the source has them

# Columns that share a scale in what an import writes (LIN-3).
GROUPS: Final = {"int4": 64, "int8": 64, "nvfp4": 16, "mxfp4": 32, "mxfp8": 32}
_EIGHT_BIT: Final = {"int4": "int8", "nvfp4": "mxfp8", "mxfp4": "mxfp8"}


def eight_bit(kind: str) -> str:
    """The 8-bit type of a type's family."""
    return _EIGHT_BIT.get(kind, kind)


def fits(columns: int, kind: str) -> bool:
    """Whether rows of that length are whole groups of the type."""
    return columns % GROUPS[kind] == 0
