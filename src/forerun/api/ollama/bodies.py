"""What the bodies of generate and chat have in common, and how it is asked for inside.

`truncate` and `shift` have no effect: a prompt that is too long is refused, never cut (API-12).
"""

from collections.abc import Sequence

from forerun.api.answers import Ask
from forerun.api.bodies import WireStruct
from forerun.api.ollama.format import read_format
from forerun.api.options import load_options, read_keep_alive, read_options
from forerun.protocol.requests import CompletionRequest, JsonValue, Message
from forerun.store.names import ModelName


class AnswerBody(WireStruct):
    """`keep_alive`, `options` and `format` have readers of their own."""

    model: str
    stream: bool | None = None
    options: dict[str, JsonValue] | None = None
    keep_alive: JsonValue = None
    format: JsonValue = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    truncate: bool | None = None
    shift: bool | None = None


def ask_for(
    body: AnswerBody,
    *,
    prompt: str | None = None,
    messages: Sequence[Message] | None = None,
    tools: list[dict[str, JsonValue]] | None = None,
    context: list[int] | None = None,
) -> Ask:
    """A completion of a raw prompt or of messages; with neither, the model's load or unload.

    `context` goes before the messages, as ids, and comes back longer; None: it does not.

    Raises RequestError naming the field at fault.
    """
    options = read_options(body.options)
    load = load_options(options)
    if options.get("num_predict") == 0:  # no limit, in Ollama (05 PRP-6)
        options["num_predict"] = -1
    request = CompletionRequest(
        prompt=prompt,
        messages=list(messages) if messages else None,
        context_ids=context or None,
        return_context=context is not None,
        tools=tools or None,
        think=body.think,
        format=read_format(body.format),
        options=options,
        logprobs=bool(body.logprobs),
        top_logprobs=body.top_logprobs or 0,
    )
    return Ask(
        model=ModelName.parse(body.model),
        request=request if prompt or messages else None,
        load=load,
        keep_alive_s=read_keep_alive(body.keep_alive),
    )
