"""The types that weights can be given at an import, as people name them (spec 07 MF-6, MF-7)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from forerun.base.errors import RequestError
from forerun.base.shown import shown

BITS: Final = {"int4": 4, "int8": 8, "nvfp4": 4, "mxfp4": 4, "mxfp8": 8}  # of a code, by type
KINDS: Final = tuple(BITS)
ALIASES: Final = {"q4": "int4", "fp4": "int4", "q8": "int8", "fp8": "int8"}
_LLAMA_CPP: Final = re.compile(r"i?q\d_.*")  # its names of types, in small letters
_LLAMA_CPP_HINT: Final = "; for llama.cpp's q4_K_M and the like take int4 here, for q8_0 int8"


def parse_kind(
    text: str, option: str = "quantize", aliases: Mapping[str, str] = ALIASES, hint: str = ""
) -> str:
    """The type that a caller names; "" for none, where weights keep what they come as.

    A blank text is no name: a script's empty variable asks for something and must not get nothing.

    option   what the value was given as
    aliases  other names of the types, in small letters
    hint     goes behind the five in what an error says can be given
    """
    name = text.strip().lower()
    kind = aliases.get(name, name)
    if text and kind not in KINDS:
        if not hint and _LLAMA_CPP.fullmatch(name):
            hint = _LLAMA_CPP_HINT
        raise RequestError(f"{option} is {shown(text)}; it can be {', '.join(KINDS)}{hint}")
    return kind


@dataclass(frozen=True, slots=True)
class Quantisation:
    """The types that were asked for; empty for what the weights come as."""

    target: str = ""
    draft: str = ""

    @classmethod
    def parse(cls, target: str, draft: str, *, has_draft: bool) -> "Quantisation":
        """RequestError for a name that is none, and for a draft's type without a draft (MF-6).

        has_draft  whether the model is given a draft now
        """
        asked = cls(parse_kind(target), parse_kind(draft, "quantize-draft"))
        if asked.draft and not has_draft:
            raise RequestError(
                f"quantize-draft is {asked.draft}, and the Modelfile has no DRAFT to quantise; "
                "name the draft's folder with DRAFT (one that FROM brings stays as it is), or "
                "leave it out"
            )
        return asked
