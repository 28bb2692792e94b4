"""What is said of an error is one line."""

import pytest

from forerun.base.errors import internal, one_line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain", "plain"),
        ("\n  CUDA error: device-side assert triggered\nSearch for it.\nFor debugging set X.\n",
         "CUDA error: device-side assert triggered"),
        ("one\r\ntwo", "one"),
        ("", "RuntimeError"),
        (" \n ", "RuntimeError"),
    ],
)  # fmt: skip
def test_the_first_line_that_says_anything_is_the_one(text: str, line: str) -> None:
    assert one_line(RuntimeError(text)) == line


def test_an_error_of_ours_names_its_type_and_its_first_line() -> None:
    assert str(internal(ValueError("a\nb"))) == "internal error: ValueError: a"
    assert internal(ValueError("a")).status == 500
