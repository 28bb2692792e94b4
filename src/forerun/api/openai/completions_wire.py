"""What is sent to and answered by /v1/completions (spec 08 OAI-2, OAI-4)."""

from forerun.api.bodies import WireStruct
from forerun.api.openai.chat_wire import StreamOptions
from forerun.api.openai.logprobs import TextLogprobs
from forerun.api.openai.sampling import SamplingFields
from forerun.api.openai.usage import Usage


class TextRequest(SamplingFields, kw_only=True):
    """`logprobs` is the number of rivals of each token.

    `keep_alive` is ours, as are `num_ctx` and `draft` of the sampling fields.
    """

    model: str
    prompt: object = None
    suffix: str | None = None
    max_tokens: object = None
    logprobs: int | None = None
    echo: bool | None = None
    n: int | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    keep_alive: object = None


class TextChoice(WireStruct):
    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: str | None


class TextAnswer(WireStruct):
    """A whole answer, or one event of a stream."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage | None = None
