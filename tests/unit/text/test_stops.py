"""Stop strings in a stream (spec 05 STP-1, STP-2; cases E01, E03)."""

import pytest

from forerun.base.errors import RequestError
from forerun.chat.stops import StopMatcher


def run(stops, chunks):
    matcher = StopMatcher(stops)
    pushed = []
    for chunk in chunks:
        pushed.append(matcher.push(chunk))
        if pushed[-1][1]:
            return pushed
    return [*pushed, (matcher.finish(), False)]


def test_a_stop_over_several_tokens_is_found_and_never_shown():
    """STP-1, STP-2, case E01."""
    pushed = run(["own fox"], ["The quick br", "own", " fox"])
    assert pushed == [("The quick br", False), ("", False), ("", True)]


def test_what_may_become_a_stop_is_held_and_given_out_if_it_does_not():
    """STP-2."""
    assert run(["abc"], ["xab", "d"]) == [("x", False), ("abd", False), ("", False)]
    assert run(["abc"], ["xab"]) == [("x", False), ("ab", False)]
    assert run(["aab"], ["aaa", "ab"]) == [("a", False), ("a", True)]


def test_an_emoji_may_stop():
    """STP-1, case E03."""
    assert run(["👩‍💻"], ["a👩", "‍💻b"]) == [("a", False), ("", True)]


@pytest.mark.parametrize(
    ("stops", "text", "before"),
    [
        (["c", "b"], "abc", "a"),
        (["bcd", "c"], "abcd", "ab"),
        (["b", "ab"], "xab", "x"),
        ([], "abc", "abc"),
    ],
)
def test_of_several_stops_the_one_complete_first_counts(stops, text, before):
    """STP-2: of those that end together the longest, in one chunk or in many."""
    assert "".join(out for out, _ in run(stops, [text])) == before
    assert "".join(out for out, _ in run(stops, list(text))) == before


def test_an_empty_stop_is_refused():
    """STP-1: it would end every text before it began."""
    with pytest.raises(RequestError, match="empty string"):
        StopMatcher(["a", ""])
