"""Calls as Llama 3.1 and later write them: JSON objects at the start of the answer.

`{"name": "f", "parameters": {"a": 1}}`, or several separated by `;` or newlines, the first perhaps
after `<|python_tag|>`. Nothing but the name of a tool tells such a call from an answer in JSON, so
an object with another name is text, and so is all that follows.
"""

import re

from forerun.chat.dialects.held import HeldText
from forerun.chat.dialects.json_calls import ObjectEnd, json_call
from forerun.chat.dialects.pieces import Piece
from forerun.chat.dialects.tools import Tools
from forerun.protocol.requests import ToolCall

PYTHON_TAG = "<|python_tag|>"

_BEFORE = re.compile(r"\s*(?:<\|python_tag\|>)?\s*")
_BETWEEN = re.compile(r"\s*;?\s*(?:<\|python_tag\|>)?\s*")
# An object that is no call shows by its first key: the rest of it need not be waited for.
_NO_CALL = re.compile(r'\{\s*(?:[^"\s]|"(?!(?:name|type|parameters|arguments)")[^"\\]*")')


class Llama3Parser(HeldText):
    """Separates calls at the start of a text."""

    def __init__(self, tools: Tools) -> None:
        super().__init__()
        self._tools = tools
        self._lead = _BEFORE
        self._end = ObjectEnd()
        self._text_only = False

    def _next(self, *, final: bool) -> Piece | None:
        if self._text_only:
            return self._text(len(self._held))
        if self._lead is _BETWEEN and self._newlines:
            return self._silent(self._newlines)
        lead = self._lead.match(self._held)
        assert lead is not None, "both leads match nothing, too"
        rest = self._held[lead.end() :]
        end = self._end.find(rest) if rest.startswith("{") else None
        call = None if end is None else self._call(rest[:end])
        if end is not None and call is not None:
            self._lead, self._end = _BETWEEN, ObjectEnd()
            return Piece(len(self._cut(lead.end() + end)), calls=(call,))
        if end is None and not final and _may_call(rest):
            return None
        self._text_only = True
        return self._text(len(self._held))

    def _call(self, written: str) -> ToolCall | None:
        call = json_call(written)
        return call if call is not None and call.name in self._tools.parameters else None


def _may_call(rest: str) -> bool:
    """Whether what follows may make a call of it."""
    if rest.startswith("{"):
        return _NO_CALL.match(rest) is None
    return PYTHON_TAG.startswith(rest)
