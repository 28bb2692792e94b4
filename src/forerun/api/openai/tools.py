"""Tools and tool calls in OpenAI's form (spec 08 OAI-2, API-10)."""

import secrets

import msgspec

from forerun.base.errors import RequestError, UnsupportedError
from forerun.base.shown import shown
from forerun.protocol.requests import JsonValue, ToolCall

Tool = dict[str, JsonValue]


def read_tools(tools: list[Tool] | None, choice: object) -> list[Tool] | None:
    """The tools to offer, as they were sent; None for none.

    Raises RequestError for what is no function tool, UnsupportedError for a choice that forces a
    call: that takes a grammar.
    """
    for place, tool in enumerate(tools or []):
        _check_tool(tool, f"tools[{place}]")
    if choice == "none":
        return None
    if choice == "required" or isinstance(choice, dict):
        raise UnsupportedError(
            f"tool_choice {shown(choice)} is not supported yet; use auto, and say in the prompt "
            "which tool to call"
        )
    if choice not in (None, "auto"):
        raise RequestError(f"tool_choice is {shown(choice)}; it must be auto or none")
    return tools or None


def call_id(call: ToolCall) -> str:
    """The call's id, a new one if it has none."""
    return call.id or f"call_{secrets.token_hex(4)}"


def call_arguments(call: ToolCall) -> str:
    """The arguments as JSON in a string; text that is no JSON stays what the model wrote."""
    if isinstance(call.arguments, str):
        return call.arguments
    return msgspec.json.encode(call.arguments or {}).decode()


def _check_tool(tool: Tool, where: str) -> None:
    if tool.get("type") != "function":
        raise RequestError(
            f"{where}.type is {shown(tool.get('type'))}; only function tools are supported"
        )
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{where}.function must be an object with a name")
    if not isinstance(function.get("parameters"), dict | None):
        raise RequestError(f"{where}.function.parameters must be a JSON schema, an object")
