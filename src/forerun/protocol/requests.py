"""What a client asks of a runner (spec 05 HTP-3, HTP-4).

Structs that forerun defines itself are strict: an unknown field is an error, so that a typing
mistake is not a silent default.
"""

from typing import Any

import msgspec

JsonValue = Any  # the one place where JSON of any shape is at home: schemas, tool arguments


class Struct(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of every message."""


class ToolCall(Struct):
    """A call that the model made, now or in an earlier turn."""

    name: str
    arguments: JsonValue = None  # an object, or a string that is not one
    id: str | None = None


class ContentPart(Struct):
    """A piece of a message's content. Media parts follow with the models that take them."""

    type: str
    text: str = ""


class Message(Struct):
    """One turn of a chat. `content` None is the same as an empty text."""

    role: str
    content: str | list[ContentPart] | None = None
    thinking: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class CompletionRequest(Struct):
    """A raw prompt, which is trusted as a whole, its token ids, or messages for the template."""

    prompt: str | None = None
    prompt_ids: list[int] | None = None  # taken as they are, no BOS added
    messages: list[Message] | None = None
    context_ids: list[int] | None = None  # a conversation so far; the messages are its next turn
    return_context: bool = False  # the ids of prompt and answer come with `Done`
    tools: list[dict[str, JsonValue]] | None = None
    think: bool | str | None = None
    template_arguments: dict[str, JsonValue] | None = None
    format: JsonValue = None  # "json", a schema or a structural tag; refused until grammar comes
    options: dict[str, JsonValue] = {}
    logprobs: bool = False
    top_logprobs: int = 0
    ignore_eos: bool = False  # go on until the budget ends: for measuring


class TokenizeRequest(Struct):
    """`special` encodes control tokens in the text as such; without it they are plain text."""

    text: str
    special: bool = True


class DetokenizeRequest(Struct):
    tokens: list[int]


class EmbedRequest(Struct):
    texts: list[str]
    dimensions: int | None = None
    truncate: bool = True
