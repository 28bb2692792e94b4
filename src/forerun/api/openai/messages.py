"""Messages as OpenAI's clients write them, to those of the protocol (spec 08 OAI-3)."""

import msgspec

from forerun.api.bodies import WireStruct
from forerun.base.errors import RequestError
from forerun.base.shown import shown
from forerun.protocol.requests import ContentPart, JsonValue, Message, ToolCall

# A developer's message is a system message under its newer name; `function` is a tool's old one.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
MEDIA = ("image_url", "input_audio", "file")


class WirePart(WireStruct):
    """A piece of content. Whatever else a part of media holds is not looked at."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(WireStruct):
    """`arguments` is JSON in a string; some clients send the object itself."""

    name: str
    arguments: object = None


class WireCall(WireStruct):
    function: FunctionCall
    id: str | None = None


class ChatMessage(WireStruct):
    """The three names of a model's thinking are those that clients send back."""

    role: str
    content: str | list[WirePart] | None = None
    name: str | None = None
    tool_calls: list[WireCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    thinking: str | None = None


def to_messages(given: list[ChatMessage]) -> list[Message]:
    """The same turns as a runner reads them.

    A tool's answer is given the name of the function that its id belongs to, for templates that
    show it. Raises RequestError naming the message and the part that is wrong.
    """
    if not given:
        raise RequestError("messages is empty; send at least one message")
    called: dict[str, str] = {}
    messages = []
    for place, each in enumerate(given):
        message = _message(each, f"messages[{place}]")
        called.update({call.id: call.name for call in message.tool_calls or [] if call.id})
        if message.role == "tool" and message.tool_name is None:
            message.tool_name = called.get(message.tool_call_id or "")
        messages.append(message)
    return messages


def read_arguments(given: object) -> JsonValue:
    """The object in a call's JSON; text that holds none is kept as it is."""
    if given is None or given == "":
        return {}
    if not isinstance(given, str):
        return given
    try:
        value = msgspec.json.decode(given)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return given
    return value if isinstance(value, dict) else given


def _message(given: ChatMessage, where: str) -> Message:
    role = ROLES.get(given.role.lower())
    if role is None:
        raise RequestError(
            f"{where}.role is {shown(given.role)}; it must be one of {', '.join(ROLES)}"
        )
    content = given.content if given.content is not None else given.refusal
    return Message(
        role=role,
        content=_parts(content, f"{where}.content") if isinstance(content, list) else content,
        thinking=given.reasoning or given.reasoning_content or given.thinking,
        tool_calls=_calls(given) or None,
        tool_name=given.name if role == "tool" else None,
        tool_call_id=given.tool_call_id,
    )


def _parts(parts: list[WirePart], where: str) -> list[ContentPart]:
    return [_part(part, f"{where}[{place}]") for place, part in enumerate(parts)]


def _part(part: WirePart, where: str) -> ContentPart:
    if part.type == "refusal":
        return ContentPart(type="text", text=part.refusal or "")
    if part.type == "text":
        return ContentPart(type="text", text=part.text or "")
    if part.type in MEDIA:
        raise RequestError(f"{where} is of type {part.type}, which is not supported yet; send text")
    raise RequestError(f"{where} is of type {shown(part.type)}, which is unknown; send text")


def _calls(given: ChatMessage) -> list[ToolCall]:
    calls = [_call(call.function, call.id) for call in given.tool_calls or []]
    if given.function_call is not None:
        calls.append(_call(given.function_call, None))
    return calls


def _call(function: FunctionCall, id: str | None) -> ToolCall:
    return ToolCall(name=function.name, arguments=read_arguments(function.arguments), id=id)
