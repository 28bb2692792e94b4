"""Values in messages."""

from forerun.base.shown import MAX_LENGTH, shown


def test_a_value_is_quoted_and_cut() -> None:
    assert shown("a\nb") == r"'a\nb'"
    assert shown(["x" * 100]).startswith("['xxx")
    assert len(shown("x" * 100)) == MAX_LENGTH


def test_a_value_that_nests_without_end_is_shown_all_the_same() -> None:
    """OAI-6: a message about a caller's mistake must not fail itself."""
    deep: list[object] = []
    for _ in range(5_000):
        deep = [deep]
    assert shown(deep) == "a list that is nested too deeply"
