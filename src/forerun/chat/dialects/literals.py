"""Values as Gemma models write them: between JSON, Python and a notation of their own.

Strings stand in quotes, with escapes, or between two `<escape>` tags, as they are.
"""

import json
import re
from collections.abc import Callable
from typing import TypeVar

from forerun.base.json_types import JsonObject, JsonValue
from forerun.chat.dialects.tools import MAX_DEPTH

ESCAPE = "<escape>"

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[^\s,:=\[\]{}()<>\"']+")
_QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)
_ESCAPED = re.compile(r"\\(u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}
_CONSTANTS = {"true": True, "false": False, "null": None, "none": None}

T = TypeVar("T")


class MalformedError(ValueError):
    """A text that is none of this notation."""


class LiteralReader:
    """Reads one text from left to right. Each method raises MalformedError."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._depth = 0

    @property
    def at_end(self) -> bool:
        self._skip_space()
        return self._place == len(self._text)

    def accepts(self, mark: str) -> bool:
        """Whether `mark` follows; then it is passed."""
        self._skip_space()
        found = self._text.startswith(mark, self._place)
        self._place += len(mark) if found else 0
        return found

    def expect(self, mark: str) -> None:
        if not self.accepts(mark):
            raise MalformedError(f"{mark!r} is missing")

    def word(self) -> str:
        self._skip_space()
        return self._match(_WORD)[0]

    def pairs(self, between: str, end: str) -> JsonObject:
        """`key<between>value`, separated by commas, up to `end`."""
        read: JsonObject = {}

        def pair() -> None:
            key = self._string()
            key = self.word() if key is None else key
            self.expect(between)
            read[key] = self.value()

        self._items(pair, end)
        return read

    def value(self) -> JsonValue:
        text = self._string()
        if text is not None:
            return text
        if self.accepts("{"):
            return self.pairs(":", "}")
        if self.accepts("["):
            read: list[JsonValue] = []
            self._items(lambda: read.append(self.value()), "]")
            return read
        return _constant(self.word())

    def _items(self, item: Callable[[], None], end: str) -> None:
        """Items separated by commas; one may trail."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise MalformedError("nested too deeply")
        while not self.accepts(end):
            item()
            if not self.accepts(","):
                self.expect(end)
                break
        self._depth -= 1

    def _string(self) -> str | None:
        if self.accepts(ESCAPE):
            end = self._text.find(ESCAPE, self._place)
            if end < 0:
                raise MalformedError("an escaped text does not end")
            start, self._place = self._place, end + len(ESCAPE)
            return self._text[start:end]
        if self._text[self._place : self._place + 1] not in ("'", '"'):
            return None
        quoted = self._match(_QUOTED)
        return _ESCAPED.sub(_unescaped, quoted[1] if quoted[2] is None else quoted[2])

    def _skip_space(self) -> None:
        self._match(_SPACE)

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self._text, self._place)
        if match is None:
            raise MalformedError(f"nothing to read at {self._place}")
        self._place = match.end()
        return match


def _unescaped(match: re.Match[str]) -> str:
    name: str = match[1]
    if len(name) > 1:
        return chr(int(name[1:], 16))
    return _SIMPLE.get(name, name if name in "\\'\"/" else match[0])


def _constant(word: str) -> JsonValue:
    """True, false, nothing, or a number in JSON's notation."""
    if word.lower() in _CONSTANTS:
        return _CONSTANTS[word.lower()]
    try:
        value: JsonValue = json.loads(word)
    except ValueError as error:
        raise MalformedError(f"{word!r} is no value") from error
    return value
