"""Calls written as JSON objects: name, and arguments or parameters."""

import json
import re

from forerun.base.json_types import JsonValue
from forerun.chat.dialects.tools import make_call
from forerun.protocol.requests import ToolCall

_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_NESTING = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[{}]', re.DOTALL)


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


def object_end(text: str) -> int | None:
    """Where the object that `text` starts with ends; None if it has not ended."""
    depth = 0
    for match in _NESTING.finditer(text):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if not depth:
            return match.end()
    return None
