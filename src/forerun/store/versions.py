"""Semantic versions, and the Ollama version that forerun follows (spec 07 MF-5)."""

import re
from typing import Final

from forerun.base.errors import RequestError
from forerun.base.shown import shown

OLLAMA_COMPAT: Final = "0.20.0"
FIRST_WITH_SAFETENSORS: Final = "0.19.0"

_IDENTIFIER = r"(?:0|[1-9][0-9]{0,8}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(
    r"v?(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})"
    rf"(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)

# Orders as semver.org 2.0.0 section 11 says: a pre-release comes before its release, numbers
# before words, and a longer list after its own prefix.
Precedence = tuple[int, int, int, bool, tuple[tuple[bool, int, str], ...]]


def precedence(version: str) -> Precedence | None:
    """What orders `version` among others; None if it is no semantic version."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return None
    major, minor, patch, pre = match.groups()
    identifiers = tuple(
        (False, int(text), "") if text.isdigit() else (True, 0, text)
        for text in (pre or "").split(".")
        if text
    )
    return int(major), int(minor), int(patch), pre is None, identifiers


def check_requires(version: str) -> None:
    """Refuse a REQUIRES that is no version or not met. It names an Ollama version, never ours."""
    wanted, first, ours = (
        precedence(text) for text in (version, FIRST_WITH_SAFETENSORS, OLLAMA_COMPAT)
    )
    assert first is not None and ours is not None  # noqa: PT018 - constants
    if wanted is None:
        raise RequestError(f"REQUIRES {shown(version)} is not a version; write one such as 0.19.0")
    if not first <= wanted <= ours:
        raise RequestError(
            f"REQUIRES {version} cannot be met: forerun follows Ollama {OLLAMA_COMPAT}, and the "
            f"first Ollama with safetensors models is {FIRST_WITH_SAFETENSORS}"
        )
