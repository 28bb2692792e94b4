"""Laws of marking control tokens in request strings (spec 06 TMP-7; T14)."""

import re

from hypothesis import given
from hypothesis import strategies as st

from forerun.chat.marks import CONTINUE, END, START, ControlMarks, cut

CONTROL = ["<|end|>", "<|end|", "<x>", "[A]", "e"]
PIECES = ["<", "|", "<|", "en", "nd|>", "end", "<x", "x>", "[", "A]", " ", "\n", "q", START, END]
TYPED = st.lists(st.sampled_from([*PIECES, CONTINUE, *CONTROL]), max_size=6).map("".join)
MARKS = ControlMarks(CONTROL)
SPELLED = re.compile("|".join(map(re.escape, sorted(CONTROL, key=len, reverse=True))))


def clean(text):
    return re.sub(f"[{START}{END}{CONTINUE}]", "", text)


@given(TYPED)
def test_marking_and_cutting_changes_no_text(text):
    """TMP-7."""
    assert "".join(span.text for span in cut(MARKS.mark(text))) == clean(text)


@given(st.lists(TYPED, max_size=4), st.booleans())
def test_no_control_token_lies_in_trusted_text_made_of_request_strings(texts, trims):
    """TMP-7: however a template puts them side by side, trimmed or not."""
    marked = [MARKS.mark(text) for text in texts]
    spans = cut("".join(text.strip() if trims else text for text in marked))
    assert not any(SPELLED.search(span.text) for span in spans if span.trusted)


@given(TYPED, st.sampled_from(CONTROL))
def test_what_a_template_writes_around_it_stays_trusted(text, token):
    """TMP-7."""
    spans = cut(f"{token}{MARKS.mark(text)}q{token}")
    assert spans[0].trusted
    assert spans[0].text.startswith(token)
    assert spans[-1].trusted
    assert spans[-1].text.endswith(token)


@given(
    st.recursive(TYPED, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TYPED, inner))
)
def test_marking_reaches_every_string_and_key(value):
    """TMP-7."""

    def strings(part):
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            for key, item in part.items():
                yield key
                yield from strings(item)
        else:
            for item in part:
                yield from strings(item)

    for text in strings(MARKS.mark(value)):
        assert not any(SPELLED.search(span.text) for span in cut(text) if span.trusted)
