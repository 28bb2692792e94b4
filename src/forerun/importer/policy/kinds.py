"""The types that a model can be quantised to (MF-7), and which rows they fit (POL-4)."""

from typing import Final

from forerun.base.errors import RequestError
from forerun.base.shown import shown

SOURCE: Final = ""  # in place of a type: the values stay as the source has them

# Columns that share a scale in what an import writes (LIN-3).
GROUPS: Final = {"int4": 64, "int8": 64, "nvfp4": 16, "mxfp4": 32, "mxfp8": 32}
BITS: Final = {"int4": 4, "int8": 8, "nvfp4": 4, "mxfp4": 4, "mxfp8": 8}  # of a code
_ALIASES: Final = {"q4": "int4", "fp4": "int4", "q8": "int8", "fp8": "int8"}
_EIGHT_BIT: Final = {"int4": "int8", "nvfp4": "mxfp8", "mxfp4": "mxfp8"}


def parse_kind(text: str, option: str = "quantize") -> str:
    """The type that a caller names, SOURCE for none. RequestError lists the five.

    option  what the value was given as
    """
    name = text.strip().lower()
    kind = _ALIASES.get(name, name)
    if kind and kind not in GROUPS:
        raise RequestError(f"{option} is {shown(text)}; it can be {', '.join(GROUPS)}")
    return kind


def eight_bit(kind: str) -> str:
    """The 8-bit type of a type's family."""
    return _EIGHT_BIT.get(kind, kind)


def fits(columns: int, kind: str) -> bool:
    """Whether rows of that length are whole groups of the type."""
    return columns % GROUPS[kind] == 0
