"""Tells control tokens that a request brought from those that a template writes (spec 06 TMP-7).

Each control token found in a request string is wrapped in private-use marks before rendering, and
the text is cut at the marks afterwards. All other text is rendered untouched, so that what a
template does to strings (trim, split, compare) works. A template's own string methods may tear a
pair apart; a lone mark still breaks the text, so that no control token forms across it.

The end of a string that begins a control token (`<|im_`) is wrapped too: what a template writes
behind it must not complete it.
"""

import re
from collections.abc import Sequence

from forerun.base.json_types import JsonObject, JsonValue
from forerun.base.spans import Span

# The last private-use characters there are; fonts put their icons at the front.
START = "\U0010fffc"
END = "\U0010fffd"
CONTINUE = "\U0010fffb"  # where a continued message ends (TMP-4)
MARKS = f"{CONTINUE}{START}{END}"

_ANY_MARK = re.compile(f"[{MARKS}]")
_MARKED = re.compile(f"{START}([^{START}{END}]*){END}|[{START}{END}]")


def remove_marks(value: JsonValue) -> JsonValue:
    """`value` without marks in any string: for text that is trusted."""
    if isinstance(value, str):
        return _ANY_MARK.sub("", value)
    if isinstance(value, list):
        return [remove_marks(item) for item in value]
    return remove_object_marks(value) if isinstance(value, dict) else value


def remove_object_marks(value: JsonObject) -> JsonObject:
    return {_ANY_MARK.sub("", key): remove_marks(item) for key, item in value.items()}


def cut(text: str) -> list[Span]:
    """The spans of a rendered text, in order, without the marks."""
    spans: list[Span] = []
    position = 0
    for match in _MARKED.finditer(text):
        spans.append(Span(text[position : match.start()], trusted=True))
        spans.append(Span(match[1] or "", trusted=False))
        position = match.end()
    spans.append(Span(text[position:], trusted=True))
    return [span for span in spans if span.text]


class ControlMarks:
    """Marks the control tokens of one model."""

    def __init__(self, control_tokens: Sequence[str]) -> None:
        self._spelled = re.compile("|".join(map(re.escape, control_tokens)) or "(?!)")
        self._beginnings = {token[:n] for token in control_tokens for n in range(1, len(token))}
        self._longest = max(map(len, self._beginnings), default=0)

    def mark(self, value: JsonValue) -> JsonValue:
        """`value` with the control tokens marked in every string, keys included."""
        if isinstance(value, str):
            return self._marked(value)
        if isinstance(value, list):
            return [self.mark(item) for item in value]
        return self.mark_object(value) if isinstance(value, dict) else value

    def mark_object(self, value: JsonObject) -> JsonObject:
        return {self._marked(key): self.mark(item) for key, item in value.items()}

    def _marked(self, text: str) -> str:
        text = _ANY_MARK.sub("", text)
        pieces: list[str] = []
        position = 0
        for match in self._spelled.finditer(text):
            pieces += [text[position : match.start()], START, match.group(), END]
            position = match.end()
        return "".join([*pieces, self._with_marked_end(text[position:])])

    def _with_marked_end(self, text: str) -> str:
        """Templates trim, so what counts is the end without whitespace."""
        visible = text.rstrip()
        for length in range(min(self._longest, len(visible)), 0, -1):
            if visible[-length:] in self._beginnings:
                start = len(visible) - length
                return f"{text[:start]}{START}{visible[start:]}{END}{text[len(visible) :]}"
        return text
