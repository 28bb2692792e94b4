"""The types of weights by the names that people give them: 07 MF-6, MF-7."""

import re

import pytest

from forerun.base.errors import RequestError
from forerun.base.quantisation import KINDS, Quantisation, parse_kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", ""),
        *((kind, kind) for kind in KINDS),
        ("q4", "int4"),
        ("FP4", "int4"),
        ("Q8", "int8"),
        ("fp8", "int8"),
        (" MXFP4 ", "mxfp4"),
    ],
)
def test_a_type_by_any_of_its_names(text: str, kind: str) -> None:
    """MF-7: aliases, in any case; nothing said is no type."""
    assert parse_kind(text) == kind


@pytest.mark.parametrize("text", ["q5", "int", "mxfp6", " ", "\t"])
def test_another_type_is_refused_with_the_five(text: str) -> None:
    """MF-7: and with the option that it was given to; blanks name none."""
    shown = re.escape(repr(text))
    five = "int4, int8, nvfp4, mxfp4, mxfp8$"
    with pytest.raises(RequestError, match=f"^quantize is {shown}; it can be {five}"):
        Quantisation.parse(text, "", has_draft=False)
    with pytest.raises(RequestError, match=f"^quantize-draft is {shown}; it can be {five}"):
        Quantisation.parse("", text, has_draft=True)


@pytest.mark.parametrize("text", ["q4_K_M", "Q8_0", "iq4_xs"])
def test_types_of_llama_cpp_are_refused_with_ours(text: str) -> None:
    """MF-7."""
    with pytest.raises(RequestError, match=rf"'{text}'; .*mxfp8; for llama\.cpp's .* int4.* int8$"):
        parse_kind(text)


def test_a_door_may_know_other_names() -> None:
    """MF-7: the five stay, whatever else is known."""
    aliases = {"small": "int4"}
    assert parse_kind("Small", aliases=aliases) == parse_kind("int4", aliases=aliases) == "int4"
    with pytest.raises(RequestError, match="mxfp8; small is int4"):
        parse_kind("q4", aliases=aliases, hint="; small is int4")


def test_a_drafts_type_needs_a_draft() -> None:
    """MF-6."""
    assert Quantisation.parse("q4", "Q8", has_draft=True) == Quantisation("int4", "int8")
    assert Quantisation.parse("q4", "", has_draft=False) == Quantisation("int4", "")
    with pytest.raises(RequestError, match=r"quantize-draft is int8, .* no DRAFT"):
        Quantisation.parse("", "q8", has_draft=False)
