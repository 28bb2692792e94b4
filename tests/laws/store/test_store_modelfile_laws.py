"""What is written into a Modelfile is read out of it again (07 MF-1)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.base.errors import RequestError
from forerun.store.modelfile import parse_modelfile
from forerun.store.modelfile_syntax import quoted
from forerun.store.versions import precedence

# Every character that the syntax gives a meaning, and a plain one.
TEXTS = st.text(alphabet='a "\n\r\t#:{é', max_size=12)


@settings(max_examples=500)
@given(text=TEXTS)
def test_a_quoted_text_is_read_back_unchanged(text: str) -> None:
    """MF-1: or is known to be one that no Modelfile can hold."""
    value = quoted(text)
    if value is None:
        assert '"""' in text or "\r\n" in text
        return
    modelfile = parse_modelfile(f"FROM a\nSYSTEM {value}\nMESSAGE user {value}\nLICENSE {value}\n")
    assert modelfile.system == text
    assert modelfile.messages[0].content == text
    assert modelfile.licenses == (text,)


@settings(max_examples=300)
@given(lines=st.lists(st.sampled_from(["FROM a", "SYSTEM", '"""', "x", "#", "PARAMETER top_k 1"])))
def test_any_text_is_a_modelfile_or_an_error_in_one_line(lines: list[str]) -> None:
    """MF-1: never another exception."""
    try:
        parse_modelfile("\n".join(lines))
    except RequestError as error:
        assert "\n" not in str(error)


# The order of https://semver.org section 11, word for word, and of numbers.
ORDERED = [
    *("0.9.9", "0.18.10", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta"),
    *("1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.1.0", "1.10.0", "2.0.0"),
]


@given(a=st.integers(0, len(ORDERED) - 1), b=st.integers(0, len(ORDERED) - 1))
def test_versions_stand_in_the_order_of_the_standard(a: int, b: int) -> None:
    """MF-5."""
    first, second = precedence(ORDERED[a]), precedence(ORDERED[b] + "+build.7")
    assert first is not None
    assert second is not None
    assert (first < second) == (a < b)
    assert (first == second) == (a == b)
