"""From a request to a job: every mistake of the caller is refused here, before any work (PRP)."""

from dataclasses import dataclass
from datetime import datetime

from forerun.base.errors import RequestError, UnsupportedError
from forerun.base.logs import logger
from forerun.base.options import OPTIONS, OptionValue, check_asked
from forerun.base.spans import Span
from forerun.chat.dialects.channels import ChannelPlan
from forerun.chat.render import ChatRequest
from forerun.protocol.requests import CompletionRequest, Message
from forerun.runner.channels import (
    check_capabilities,
    close_thinking,
    plan_channels,
    thinking_arguments,
)
from forerun.runner.text import TextParts
from forerun.sampling.options import SamplingOptions

log = logger(__name__)

MAX_TOP_LOGPROBS = 20  # 08 API-5
MOST_CHARACTERS = 256  # that a token stands for, in the vocabularies there are and on average


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers of a loaded model that a request is checked against."""

    context: int  # tokens that are loaded for prompt and answer together
    max_context: int  # tokens that the model itself could take
    vocab_size: int
    drafts: tuple[str, ...] = ("auto", "off")  # what a request may draft with (03 DRF-8)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that can be run. `channels` is None where all of the answer is text."""

    tokens: tuple[int, ...]
    sampling: SamplingOptions
    budget: int
    stops: tuple[str, ...]
    channels: ChannelPlan | None = None


def prepare(request: CompletionRequest, text: TextParts, limits: Limits) -> Prepared:
    """Raises RequestError or UnsupportedError naming what is wrong and the remedy."""
    if request.format is not None and request.format != "":
        raise UnsupportedError(
            "structured output (format, response_format) is not supported yet; leave it out and "
            "check the answer"
        )
    check_capabilities(request, text)
    options = check_asked(dict(request.options))
    _note_inert(options)
    layered = {**text.parameters, **options}
    sampling = _sampling(request, text, options)
    if sampling.draft not in limits.drafts:
        offered = ", ".join(limits.drafts)
        raise RequestError(f"draft is {sampling.draft!r}; this model offers {offered}")
    # normalised for its checks alone: a bias on a token that is not there is the caller's mistake
    sampling.normalised(vocab_size=limits.vocab_size, context_length=limits.context)
    context = _context(options, limits)
    tokens, channels = _prompt(request, text, limits)
    if not tokens:
        raise RequestError("empty prompt: it has no tokens")
    if len(tokens) >= context:
        more = "" if context >= limits.max_context else " or ask for a larger num_ctx"
        raise RequestError(
            f"the prompt has {len(tokens)} tokens and the context is {context}; shorten it{more}"
        )
    return Prepared(
        tokens=tuple(tokens),
        sampling=sampling,
        budget=_budget(layered, context - len(tokens)),
        stops=_stops(layered),
        channels=channels,
    )


def prepare_embedding(
    content: str, text: TextParts, limits: Limits, *, truncate: bool
) -> tuple[int, ...]:
    """The tokens of a text to embed, in the model's frame.

    Where it is longer than the context and the request allows it, the text's end is cut, and never
    the frame: the last token may be the one that is pooled.
    """
    most = limits.context * MOST_CHARACTERS
    if len(content) > most and not truncate:
        raise RequestError(
            f"a text to embed has {len(content)} characters, more than a context of "
            f"{limits.context} tokens holds; shorten it or set truncate"
        )
    tokens = text.tokenizer.encode([Span(content[:most], trusted=False)])
    if not tokens:
        raise RequestError("a text to embed is empty; leave it out")
    frame = text.tokenizer.special.frame
    room = limits.context - len(frame.before) - len(frame.after)
    if len(tokens) > room and not truncate:
        raise RequestError(
            f"a text to embed has {len(tokens) + limits.context - room} tokens and the context is "
            f"{limits.context}; shorten it or set truncate"
        )
    return (*frame.before, *tokens[:room], *frame.after)


def _sampling(
    request: CompletionRequest, text: TextParts, options: dict[str, OptionValue]
) -> SamplingOptions:
    """Defaults, then the model's parameters, then the request (04 OPT-4)."""
    if not 0 <= request.top_logprobs <= MAX_TOP_LOGPROBS:
        raise RequestError(
            f"top_logprobs is {request.top_logprobs}; it must be 0 to {MAX_TOP_LOGPROBS}"
        )
    return SamplingOptions.from_layers(
        text.parameters,
        options,
        logprobs=request.logprobs,
        top_logprobs=request.top_logprobs,
    )


def _note_inert(options: dict[str, OptionValue]) -> None:
    """08 OPT: what is fixed once a model is loaded has no effect either; num_ctx has one."""
    inert = [
        name
        for name in options
        if OPTIONS[name].inert or (OPTIONS[name].load_time and name != "num_ctx")
    ]
    if inert:
        log.debug("options without effect: %s", ", ".join(inert))


def _context(options: dict[str, OptionValue], limits: Limits) -> int:
    """The request's own num_ctx is a limit within what is loaded (08 SCH-2, PRP-8)."""
    asked = options.get("num_ctx")
    if not isinstance(asked, int) or limits.context == limits.max_context < asked:
        return limits.context
    if asked > limits.context:
        raise RequestError(
            f"num_ctx is {asked} and the model is loaded with {limits.context}; load it with more"
        )
    return asked


def _budget(options: dict[str, OptionValue], room: int) -> int:
    """Tokens to generate at most (PRP-6)."""
    asked = options.get("num_predict", -1)
    assert isinstance(asked, int), asked
    return room if asked < 0 else min(asked, room)


def _stops(options: dict[str, OptionValue]) -> tuple[str, ...]:
    stops = options.get("stop") or []
    assert isinstance(stops, list), stops
    if not all(stops):
        raise RequestError("stop holds an empty string; leave it out")
    return tuple(stops)


def _prompt(
    request: CompletionRequest, text: TextParts, limits: Limits
) -> tuple[list[int], ChannelPlan | None]:
    """The prompt's ids, and what to separate in the answer: a continued text is text as a whole."""
    given = (request.prompt, request.prompt_ids, request.messages)
    if sum(part is not None for part in given) != 1:
        raise RequestError("send one of prompt, prompt_ids and messages")
    if request.context_ids is not None and request.messages is None:
        raise RequestError("context_ids go before messages; join them to prompt_ids yourself")
    if request.prompt_ids is not None:
        return _checked(request.prompt_ids, limits), None
    if request.prompt is not None:
        spans = _bounded([Span(request.prompt, trusted=True)], limits)
        return text.tokenizer.encode_prompt(spans), None
    rendered = text.renderer.render(_chat(request, text), datetime.now())
    spans = close_thinking(request, text, _bounded(rendered, limits))
    if request.context_ids is not None:
        before = _checked(request.context_ids, limits)
        return before + text.tokenizer.encode(spans), plan_channels(request, text, spans)
    return text.tokenizer.encode_prompt(spans), plan_channels(request, text, spans)


def _bounded(spans: list[Span], limits: Limits) -> list[Span]:
    """The same spans, unless they are so long that counting their tokens is not worth its cost."""
    count = sum(len(span.text) for span in spans)
    if count > limits.context * MOST_CHARACTERS:
        raise RequestError(
            f"the prompt has {count} characters, more than a context of {limits.context} tokens "
            "holds; shorten it"
        )
    return spans


def _checked(tokens: list[int], limits: Limits) -> list[int]:
    strange = [token for token in tokens if not 0 <= token < limits.vocab_size]
    if strange:
        raise RequestError(f"{strange[0]} is no token id; ids are 0 to {limits.vocab_size - 1}")
    return tokens


def _chat(request: CompletionRequest, text: TextParts) -> ChatRequest:
    """The messages after those of the Modelfile; its SYSTEM yields to one of the request's own."""
    messages = request.messages or []
    _refuse_media(messages)
    has_system = bool(messages) and messages[0].role == "system"
    return ChatRequest(
        messages=[_plain(message) for message in messages],
        tools=request.tools,
        arguments=thinking_arguments(request, text),
        system=None if has_system else text.system,
        model_turns=[{"role": turn.role, "content": turn.content} for turn in text.messages],
        goes_on=request.context_ids is not None,
    )


def _refuse_media(messages: list[Message]) -> None:
    """PRP-3."""
    for message in messages:
        for part in message.content if isinstance(message.content, list) else []:
            if part.type != "text":
                kind = part.type.removesuffix("_url").removeprefix("input_")
                raise RequestError(f"this model does not support {kind} input; send text only")


def _plain(message: Message) -> dict[str, object]:
    """A message as published chat templates read it."""
    plain: dict[str, object] = {
        "role": message.role,
        "content": _content(message),
        "thinking": message.thinking,
        "name": message.tool_name,
        "tool_call_id": message.tool_call_id,
    }
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return plain


def _content(message: Message) -> object:
    if not isinstance(message.content, list):
        return message.content or ""
    return [{"type": part.type, "text": part.text} for part in message.content] or ""
