"""Calls written as JSON objects: name, and arguments or parameters."""

import json
import re

from forerun.base.json_types import JsonValue
from forerun.chat.dialects.tools import make_call
from forerun.protocol.requests import ToolCall

_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_OUTSIDE = re.compile(r'["{}]')
_INSIDE = re.compile(r'"|\\.', re.DOTALL)


def json_call(text: str) -> ToolCall | None:
    """The call in a JSON text; None if it is anything else."""
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return make_call(value.get("name"), value.get("arguments", value.get("parameters", {})))


def ends_in_string(text: str) -> bool:
    """Whether the end of a JSON text is inside a string. A string does not cross lines."""
    last_line = _STRING.sub("", text).rpartition("\n")[2]
    return '"' in last_line


class ObjectEnd:
    """Finds the end of the object that a growing text starts with; reads each character once."""

    def __init__(self) -> None:
        self._read = 0
        self._depth = 0
        self._in_string = False

    def find(self, text: str) -> int | None:
        """Where it ends, None if it has not. `text` begins with the text of the call before."""
        while match := (_INSIDE if self._in_string else _OUTSIDE).search(text, self._read):
            self._read = match.end()
            mark = match.group()
            if mark == '"':
                self._in_string = not self._in_string
            self._depth += {"{": 1, "}": -1}.get(mark, 0)
            if not self._depth:
                return self._read
        half_escape = self._in_string and text.endswith("\\", self._read)
        self._read = len(text) - half_escape
        return None
