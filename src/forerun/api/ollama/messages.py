"""The messages of a chat: their wire form, and the form that goes inside (08 API-7)."""

from collections.abc import Sequence

from forerun.api.bodies import WireStruct
from forerun.api.ollama.images import refuse_images
from forerun.protocol.requests import ContentPart, JsonValue, Message, ToolCall


class WireFunction(WireStruct, kw_only=True):
    """A called function; clients send its arguments as an object or as JSON text."""

    index: int | None = None
    name: str
    arguments: dict[str, JsonValue] | str | None = None


class WireToolCall(WireStruct, kw_only=True):
    """A call of a tool, in messages and in answers."""

    id: str | None = None
    function: WireFunction


class WirePart(WireStruct):
    """A piece of content as OpenAI's clients send it."""

    type: str
    text: str | None = None


class WireMessage(WireStruct):
    """One turn. A reasoning text is read under each of the names that clients know (B13)."""

    role: str
    content: str | list[WirePart] | None = None
    thinking: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    images: list[str] | None = None
    tool_calls: list[WireToolCall] | None = None
    tool_name: str | None = None
    name: str | None = None  # of the tool, in older clients
    tool_call_id: str | None = None


def read_messages(messages: Sequence[WireMessage], model: str) -> list[Message]:
    """RequestError for images; what else may be wrong is for the model's runner to say."""
    for place, message in enumerate(messages):
        refuse_images(message.images, model, f"messages[{place}].images")
    return [_message(message) for message in messages]


def _message(message: WireMessage) -> Message:
    role = message.role.lower()
    return Message(
        role=role,
        content=_content(message.content),
        thinking=message.thinking or message.reasoning or message.reasoning_content,
        tool_calls=[_call(call) for call in message.tool_calls or ()] or None,
        tool_name=message.tool_name or (message.name if role == "tool" else None),
        tool_call_id=message.tool_call_id,
    )


def _content(content: str | list[WirePart] | None) -> str | list[ContentPart] | None:
    if not isinstance(content, list):
        return content
    return [ContentPart(type=part.type, text=part.text or "") for part in content]


def _call(call: WireToolCall) -> ToolCall:
    return ToolCall(name=call.function.name, arguments=call.function.arguments, id=call.id)
