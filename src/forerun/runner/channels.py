"""Whether a model thinks and calls tools in a request, and what its answer is to be read as."""

from collections.abc import Sequence

from forerun.base.errors import RequestError
from forerun.base.shown import shown
from forerun.base.spans import Span
from forerun.chat.dialects.channels import ChannelPlan
from forerun.chat.dialects.registry import THINKING, TOOLS
from forerun.chat.dialects.thinking import CLOSE, Opening, opening_after, opening_within
from forerun.chat.dialects.tools import Tools
from forerun.protocol.requests import CompletionRequest, Message
from forerun.runner.text import TextParts

THINK_LEVELS = ("low", "medium", "high", "max")  # 08 API-9


def check_capabilities(request: CompletionRequest, text: TextParts) -> None:
    """Raises RequestError where a request wants what the model's manifest does not state."""
    if isinstance(request.think, str) and request.think not in THINK_LEVELS:
        raise RequestError(
            f"think is {shown(request.think)}; "
            f"it must be true, false or one of {', '.join(THINK_LEVELS)}"
        )
    if request.think and not _thinks(text):
        raise RequestError(f'"{text.name}" does not support thinking; leave think out')
    if request.tools and not _calls_tools(text):
        raise RequestError(f'"{text.name}" does not support tools; leave tools out')


def thinking_arguments(request: CompletionRequest, text: TextParts) -> dict[str, object]:
    """`think` under the names that templates know it by. Unset, a model that can think does."""
    wanted = request.think
    given = dict(request.template_arguments or {})
    if wanted is None:
        return {"enable_thinking": True, "thinking": True, **given} if _thinks(text) else given
    level = {"reasoning_effort": wanted} if isinstance(wanted, str) else {}
    return {**given, "enable_thinking": bool(wanted), "thinking": bool(wanted), **level}


def close_thinking(
    request: CompletionRequest, text: TextParts, prompt: Sequence[Span]
) -> list[Span]:
    """A rendered prompt, behind which nothing is thought where that is not wanted (PAR-2).

    A template that opens thinking whatever it is told is overruled, in families that know an empty
    block. A continued message stays as it is.
    """
    messages = request.messages or []
    continued = bool(messages) and messages[-1].role == "assistant"
    unwanted = request.think is False and text.dialect.closable and not continued
    if not unwanted or opening_after(prompt) != "opened":
        return [*prompt]
    return [*prompt, Span(f"\n{CLOSE}\n\n", trusted=True)]


def plan_channels(
    request: CompletionRequest, text: TextParts, prompt: Sequence[Span]
) -> ChannelPlan | None:
    """What is to be separated in the answer to a rendered chat; None if all of it is text."""
    thinks = _thinks(text)
    calls = text.dialect.calls if request.tools else None
    if not thinks and calls is None:
        return None
    return ChannelPlan(
        opening=_opening(request.messages or [], prompt) if thinks else None,
        calls=calls,
        tools=Tools.of(request.tools or []),
    )


def _thinks(text: TextParts) -> bool:
    return THINKING in text.capabilities and text.dialect.thinking


def _calls_tools(text: TextParts) -> bool:
    return TOOLS in text.capabilities and text.dialect.calls is not None


def _opening(messages: Sequence[Message], prompt: Sequence[Span]) -> Opening:
    """A last message of the assistant's is continued (06 TMP-4), in its text or its thinking."""
    if messages and messages[-1].role == "assistant":
        written = _written(messages[-1])
        if written:
            return opening_within(written)
        if messages[-1].thinking:
            return "inside"
    return opening_after(prompt)


def _written(message: Message) -> str:
    if isinstance(message.content, list):
        return "".join(part.text for part in message.content)
    return message.content or ""
