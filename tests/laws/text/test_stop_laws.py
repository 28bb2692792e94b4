"""Laws of stop strings over any text, any chunking (spec 05 STP-1, STP-2)."""

from hypothesis import given
from hypothesis import strategies as st

from forerun.chat.stops import StopMatcher

WORDS = st.text(alphabet="ab<", min_size=1, max_size=4)
CHUNKS = st.lists(st.text(alphabet="ab<", max_size=5), max_size=8)


def searched(stops, text):
    """The text before the first stop: try every end, shortest first."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(st.lists(WORDS, max_size=3), CHUNKS)
def test_any_chunking_gives_the_text_of_a_whole_search(stops, chunks):
    """STP-2."""
    matcher = StopMatcher(stops)
    text, stopped = "", False
    for chunk in chunks:
        out, stopped = matcher.push(chunk)
        text += out
        if stopped:
            break
    assert (text + matcher.finish(), stopped) == searched(stops, "".join(chunks))


@given(st.lists(WORDS, max_size=3), CHUNKS)
def test_no_more_is_held_than_may_become_a_stop(stops, chunks):
    """STP-2: text that no stop can reach back to is out at once."""
    matcher = StopMatcher(stops)
    pushed, out = "", ""
    for chunk in chunks:
        more, stopped = matcher.push(chunk)
        pushed, out = pushed + chunk, out + more
        if stopped:
            return
        held = pushed[len(out) :]
        assert pushed == out + held
        assert not held or any(stop.startswith(held) for stop in stops)
