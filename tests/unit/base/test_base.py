"""Units, and files that appear whole or not at all."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.base.errors import STATUS_TO_ERROR, ForerunError, error_for
from forerun.base.paths import replacing
from forerun.base.units import format_bytes, format_seconds, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("10", 10), ("-1", -1), ("-1m", -60)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@given(st.text(alphabet="0123456789hms.- x", max_size=6))
def test_a_duration_parses_or_names_itself(text: str) -> None:
    try:
        parse_duration(text)
    except ValueError as error:
        assert repr(text) in str(error)


def test_sizes_and_times_as_people_read_them() -> None:
    assert [format_bytes(n) for n in (0, 999, 96_400_000)] == ["0 B", "999 B", "96.4 MB"]
    assert [format_seconds(s) for s in (0.35, 2.1, 200)] == ["350 ms", "2.1 s", "3 min 20 s"]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    with replacing(target) as file:
        file.write(b"old")
    with pytest.raises(RuntimeError), replacing(target) as file:
        file.write(b"half of the new")
        raise RuntimeError
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_error_keeps_its_kind_across_a_process_border() -> None:
    for status, kind in STATUS_TO_ERROR.items():
        assert type(error_for(status, "x")) is kind
        assert error_for(status, "x").status == status
    assert type(error_for(500, "x")) is ForerunError
