"""Answers in the words of the native API (08 API-5, API-7, API-8, API-14..16).

A stream is JSON lines: pieces of the answer with `done` false, then exactly one object with `done`
true and the figures; or one last line {"error": text}. Durations are nanoseconds. Beyond Ollama's
fields there are, for who knows them:

    cached_count, drafted_count, accepted_count   tokens of the prompt that were not evaluated
                  again, tokens that were drafted, and those of them that were accepted
    drafting      what the drafter did: its name, rounds, drafted, accepted; `positions` of a
                  round's first draft, second, ... and `depths` over time; absent without one
    first_token_duration                          from the request's start at the runner
    progress      {processed, total} tokens of the prompt, in an empty piece that is sent when
                  nothing else was for a while, so that no client gives up (E19)
"""

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime

from forerun.api.bodies import WireStruct
from forerun.api.ollama.messages import WireFunction, WireToolCall
from forerun.base.errors import ForerunError, one_line
from forerun.protocol.codec import encode, encode_line
from forerun.protocol.events import Chunk, Done, Drafting, Figures, LogprobEntry, Progress
from forerun.protocol.requests import JsonValue, ToolCall
from forerun.scheduler.scheduler import Lease

ASSISTANT = "assistant"
NANOSECONDS = 1_000_000_000


class WireProgress(WireStruct, omit_defaults=False):
    """Tokens of a prompt."""

    processed: int
    total: int


class ReplyMessage(WireStruct):
    """A piece of a chat's answer."""

    role: str
    content: str
    thinking: str | None = None
    tool_calls: list[WireToolCall] | None = None


class Reply(WireStruct, kw_only=True):
    """One object of an answer: generate has `response`, chat has `message`."""

    model: str
    created_at: datetime
    message: ReplyMessage | None = None
    response: str | None = None
    thinking: str | None = None
    tool_calls: list[WireToolCall] | None = None
    logprobs: list[LogprobEntry] | None = None
    progress: WireProgress | None = None
    done: bool
    done_reason: str | None = None
    context: list[int] | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    cached_count: int | None = None
    drafted_count: int | None = None
    accepted_count: int | None = None
    drafting: Drafting | None = None
    first_token_duration: int | None = None


class ErrorReply(WireStruct):
    """An error's whole body, or the last line of a stream that broke off."""

    error: str


class NativeDialect(ABC):
    """A `Dialect`; the two kinds of answers differ in where their text stands."""

    media_type = "application/x-ndjson"

    def __init__(self, model: str, arrived: float) -> None:
        """`model` is named as the client named it; `arrived` is on the monotonic clock."""
        self._model = model
        self._arrived = arrived
        self._load_s = 0.0
        self._progress: WireProgress | None = None
        self._calls = 0

    def leased(self, lease: Lease) -> None:
        self._load_s = lease.load_s

    def event(self, event: Progress | Chunk) -> bytes:
        if isinstance(event, Progress):
            self._progress = WireProgress(processed=event.processed, total=event.total)
            return b""
        self._progress = None
        if not (event.text or event.thinking or event.tool_calls or event.logprobs):
            return b""
        return encode_line(self._reply(event))

    def quiet(self) -> bytes:
        reply = self._reply(Chunk())
        reply.progress = self._progress
        return encode_line(reply)

    def done(self, done: Done) -> bytes:
        return encode_line(self._end(Chunk(), done))

    def whole(self, chunk: Chunk, done: Done) -> bytes:
        return encode(self._end(chunk, done))

    def failed(self, error: ForerunError) -> bytes:
        return encode_line(ErrorReply(error=one_line(error)))

    def refusal(self, error: ForerunError) -> bytes:
        return refusal(error)

    @abstractmethod
    def _reply(self, chunk: Chunk) -> Reply:
        """A piece of the answer."""

    def _end(self, chunk: Chunk, done: Done) -> Reply:
        reply = self._reply(chunk)
        reply.done, reply.done_reason = True, done.reason
        reply.context = done.context_ids or None
        reply.total_duration = nanoseconds(time.monotonic() - self._arrived)
        reply.load_duration = nanoseconds(self._load_s)
        if done.reason not in ("load", "unload"):
            _add_figures(reply, done.figures)
        return reply

    def _wire_calls(self, calls: Sequence[ToolCall]) -> list[WireToolCall] | None:
        """Calls are numbered through the whole answer (E05)."""
        first, self._calls = self._calls, self._calls + len(calls)
        return [_wire_call(call, first + place) for place, call in enumerate(calls)] or None


class GenerateDialect(NativeDialect):
    """Answers of /api/generate."""

    def _reply(self, chunk: Chunk) -> Reply:
        return Reply(
            model=self._model,
            created_at=datetime.now(UTC),
            response=chunk.text,
            thinking=chunk.thinking or None,
            tool_calls=self._wire_calls(chunk.tool_calls),
            logprobs=chunk.logprobs or None,
            done=False,
        )


class ChatDialect(NativeDialect):
    """Answers of /api/chat."""

    def _reply(self, chunk: Chunk) -> Reply:
        return Reply(
            model=self._model,
            created_at=datetime.now(UTC),
            message=ReplyMessage(
                role=ASSISTANT,
                content=chunk.text,
                thinking=chunk.thinking or None,
                tool_calls=self._wire_calls(chunk.tool_calls),
            ),
            logprobs=chunk.logprobs or None,
            done=False,
        )


def refusal(error: ForerunError) -> bytes:
    """The body of an error."""
    return encode(ErrorReply(error=one_line(error)))


def nanoseconds(seconds: float) -> int:
    return round(seconds * NANOSECONDS)


def _add_figures(reply: Reply, figures: Figures) -> None:
    reply.prompt_eval_count = figures.prompt_tokens
    reply.prompt_eval_duration = nanoseconds(figures.prompt_seconds)
    reply.eval_count = figures.generated_tokens
    reply.eval_duration = nanoseconds(figures.generation_seconds)
    reply.cached_count = figures.cached_tokens
    reply.drafted_count = figures.drafted_tokens
    reply.accepted_count = figures.accepted_tokens
    reply.drafting = figures.drafting
    reply.first_token_duration = nanoseconds(figures.first_token_seconds)


def _wire_call(call: ToolCall, index: int) -> WireToolCall:
    return WireToolCall(
        id=call.id or f"call_{secrets.token_hex(4)}",  # API-10
        function=WireFunction(index=index, name=call.name, arguments=_arguments(call.arguments)),
    )


def _arguments(arguments: JsonValue) -> dict[str, JsonValue]:
    """Clients refuse what is no object, so anything else is wrapped, for the tool to refuse."""
    if isinstance(arguments, dict):
        return arguments
    return {} if arguments is None else {"arguments": arguments}
