"""Calls between `<tool_call>` and `</tool_call>`, as JSON or as XML of functions and parameters.

JSON as Hermes and Qwen 2.5 and 3 write it: `{"name": "f", "arguments": {"a": 1}}`. XML as
Qwen3-Coder and Qwen 3.5 write it: `<function=f>`, for each argument `<parameter=a>`, a newline, its
value, a newline, `</parameter>`, and `</function>`.
"""

import json
import re
from collections.abc import Sequence

from forerun.base.json_types import JsonObject, JsonValue
from forerun.chat.dialects.blocks import Block
from forerun.chat.dialects.json_calls import ends_in_string, json_call
from forerun.chat.dialects.tools import Tools, make_call
from forerun.protocol.requests import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
_FUNCTION_END = "</function>"
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]+)>")
_CONSTANTS = ("true", "false", "null", "none")
_PARAMETER_END = re.compile(r"</parameter>\s*(?=<parameter=|\Z)")


def _read(body: str, tools: Tools) -> Sequence[ToolCall]:
    call = _xml_call(body, tools) if _FUNCTION.match(body) else json_call(body)
    return () if call is None else (call,)


def _whole(body: str) -> bool:
    if _FUNCTION.match(body):
        return body.rstrip().endswith(_FUNCTION_END)
    return not ends_in_string(body)


TOOL_CALL = Block(OPEN, CLOSE, _read, _whole)


def _xml_call(body: str, tools: Tools) -> ToolCall | None:
    start = _FUNCTION.match(body)
    assert start is not None
    name, rest = start[1].strip(), body[start.end() :].rstrip().removesuffix(_FUNCTION_END)
    arguments: JsonObject = {}
    while rest.strip():
        key, end = _PARAMETER.match(rest), _PARAMETER_END.search(rest)
        if key is None or end is None:
            return None
        written = rest[key.end() : end.start()].removeprefix("\n").removesuffix("\n")
        arguments[key[1].strip()] = _value(written, tools.types(name, key[1].strip()))
        rest = rest[end.end() :]
    return make_call(name, arguments)


def _value(written: str, types: frozenset[str]) -> JsonValue:
    """A string stays as written; anything else is JSON, or Python's spelling of a constant."""
    if not types or "string" in types:
        return written
    constant = written.strip().lower()
    text = {"none": "null"}.get(constant, constant) if constant in _CONSTANTS else written
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return written
    return value
