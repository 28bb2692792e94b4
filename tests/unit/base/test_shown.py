"""Values in messages."""

from forerun.base.shown import MAX_LENGTH, MAX_LISTED, listed, shown


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


def test_a_list_of_many_is_counted_and_not_told() -> None:
    """Who sends a request does not decide how long a line of the log is."""
    assert listed(["a", "b\n"]) == r"'a', 'b\n'"
    assert listed(range(MAX_LISTED)).endswith(str(MAX_LISTED - 1))
    assert listed(range(MAX_LISTED + 5)).endswith(f"{MAX_LISTED - 1} and 5 more")
