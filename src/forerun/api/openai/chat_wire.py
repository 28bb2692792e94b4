"""What is sent to and answered by /v1/chat/completions (spec 08 OAI-2, OAI-4)."""

from forerun.api.bodies import WireStruct
from forerun.api.openai.formats import ResponseFormat
from forerun.api.openai.logprobs import ChatLogprobs
from forerun.api.openai.messages import ChatMessage
from forerun.api.openai.sampling import SamplingFields
from forerun.api.openai.usage import Usage
from forerun.protocol.requests import JsonValue

FINGERPRINT = "fp_forerun"


class StreamOptions(WireStruct):
    include_usage: bool | None = None


def wants_usage(options: StreamOptions | None) -> bool:
    return options is not None and bool(options.include_usage)


class ChatRequest(SamplingFields, kw_only=True):
    """`keep_alive` is ours, as are `num_ctx` and `draft` of the sampling fields."""

    model: str
    messages: list[ChatMessage]
    tools: list[dict[str, JsonValue]] | None = None
    tool_choice: object = None
    response_format: ResponseFormat | None = None
    reasoning_effort: object = None
    max_completion_tokens: object = None
    max_tokens: object = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    keep_alive: object = None


class Function(WireStruct):
    """`arguments` is JSON in a string."""

    name: str
    arguments: str


class Call(WireStruct):
    """A call comes whole, so a stream has one delta of it; `index` is in streams only."""

    id: str
    type: str
    function: Function
    index: int | None = None


class AnswerMessage(WireStruct):
    """`content` is null where there are calls and no text."""

    role: str
    content: str | None
    reasoning: str | None = None
    tool_calls: list[Call] | None = None


class AnswerChoice(WireStruct):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class ChatAnswer(WireStruct):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[AnswerChoice]
    usage: Usage


class Delta(WireStruct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Call] | None = None


class DeltaChoice(WireStruct):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: str | None


class ChatPiece(WireStruct):
    """One event of a stream. The one with the usage has no choices."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[DeltaChoice]
    usage: Usage | None = None
