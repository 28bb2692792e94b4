"""Checks messages and brings them into the one form that templates read (TMP-2, TMP-3, TMP-9)."""

import json
from collections.abc import Iterable

from forerun.base.errors import RequestError
from forerun.base.json_types import JsonObject, JsonValue
from forerun.base.shown import shown
from forerun.chat.plain import plain_object

# Templates build control tokens from role names, which marks cannot prevent (TMP-9).
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
REASONING = ("reasoning_content", "thinking", "reasoning")


def read_messages(messages: Iterable[object]) -> list[JsonObject]:
    """Plain messages with a known role and no null. Raises RequestError naming the message."""
    return [_message(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _message(message: object, where: str) -> JsonObject:
    read: JsonObject = {k: v for k, v in plain_object(message, where).items() if v is not None}
    if read.get("role") not in ROLES:
        raise RequestError(
            f"{where} has role {shown(read.get('role'))}; the roles are {', '.join(ROLES)}"
        )
    _check_content(read.get("content", ""), where)
    if not read.get("tool_calls", True):  # templates count calls where the key is present
        del read["tool_calls"]
    if "tool_calls" in read:
        read["tool_calls"] = _tool_calls(read["tool_calls"], where)
    reasoning = next((read[name] for name in REASONING if name in read), None)
    if reasoning is not None:
        read = {"thinking": reasoning, **read, "reasoning_content": reasoning}
    return read


def _check_content(content: JsonValue, where: str) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise RequestError(f"{where} has content {shown(content)}; send a text or a list of parts")
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise RequestError(f"{where} holds a part of type {shown(kind)}; this model reads text")
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise RequestError(f"{where} holds a text part without text: {shown(part)}")


def _tool_calls(calls: JsonValue, where: str) -> JsonValue:
    if not isinstance(calls, list):
        raise RequestError(f"{where} has tool_calls {shown(calls)}; send a list")
    return [_tool_call(call, where) for call in calls]


def _tool_call(call: JsonValue, where: str) -> JsonValue:
    if not isinstance(call, dict):
        raise RequestError(f"{where} has a tool call {shown(call)}; send an object")
    function = call.get("function")
    if isinstance(function, dict):
        return {**call, "function": _with_arguments_read(function)}
    return _with_arguments_read(call)


def _with_arguments_read(function: JsonObject) -> JsonObject:
    """OpenAI's clients send arguments as JSON text, templates read an object."""
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return function
    try:
        parsed: JsonValue = json.loads(arguments)
    except (ValueError, RecursionError):
        return function
    return {**function, "arguments": parsed} if isinstance(parsed, dict) else function
