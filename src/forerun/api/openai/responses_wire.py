"""What clients send to /v1/responses (spec 08 OAI-9)."""

from forerun.api.bodies import WireStruct
from forerun.api.openai.sampling import SamplingFields
from forerun.protocol.requests import JsonValue


class Part(WireStruct):
    """A piece of an item's content, output or summary."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None


class InputItem(WireStruct):
    """One item of any type: each type has some of the fields. Without a type it is a message."""

    type: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None


class Tool(WireStruct):
    """A function, not wrapped into a field of its own as in chat completions."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


class TextFormat(WireStruct):
    type: str | None = None
    name: str | None = None
    schema: dict[str, JsonValue] | None = None


class TextConfig(WireStruct):
    format: TextFormat | None = None


class Reasoning(WireStruct):
    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(SamplingFields, kw_only=True):
    """The fields that have a meaning here; `include` may ask for log-probabilities.

    `keep_alive` is ours, as in chat completions.
    """

    model: str
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    tools: list[Tool] | None = None
    tool_choice: JsonValue = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    max_output_tokens: object = None
    top_logprobs: int | None = None
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    truncation: str | None = None
    include: list[str] | None = None
    store: bool | None = None
    user: str | None = None
    previous_response_id: str | None = None
    conversation: JsonValue = None
    prompt: JsonValue = None
    background: bool | None = None
    keep_alive: object = None
