"""One answer of /v1/chat/completions: an object, or events of its pieces (08 OAI-4, OAI-5)."""

import secrets
import time

from forerun.api.openai import sse
from forerun.api.openai.chat_wire import (
    FINGERPRINT,
    AnswerChoice,
    AnswerMessage,
    Call,
    ChatAnswer,
    ChatPiece,
    Delta,
    DeltaChoice,
    Function,
)
from forerun.api.openai.logprobs import chat_logprobs
from forerun.api.openai.tools import call_arguments, call_id
from forerun.api.openai.usage import Usage, usage_of
from forerun.base.errors import ForerunError
from forerun.protocol.codec import encode
from forerun.protocol.events import Chunk, Done, LogprobEntry, Progress
from forerun.protocol.requests import ToolCall
from forerun.scheduler.scheduler import Lease


class ChatDialect:
    """The `Dialect` of one request."""

    media_type = sse.MEDIA_TYPE

    def __init__(self, model: str, *, include_usage: bool) -> None:
        """`model` is the name that the client sent; `include_usage` is about a stream."""
        self._model = model
        self._include_usage = include_usage
        self._id = f"chatcmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._begun = False
        self._calls = 0

    def leased(self, lease: Lease) -> None:
        """Nothing of the loaded model is told."""

    def event(self, event: Progress | Chunk) -> bytes:
        begin = self._begin()
        return begin + self._grown(event) if isinstance(event, Chunk) else begin

    def quiet(self) -> bytes:
        return sse.QUIET

    def done(self, done: Done) -> bytes:
        end = self._piece(Delta(), finish_reason=finish_reason(done, calls=self._calls))
        usage = self._event([], usage_of(done.figures)) if self._include_usage else b""
        return self._begin() + end + usage + sse.DONE

    def failed(self, error: ForerunError) -> bytes:
        return sse.broken_off(error)

    def whole(self, chunk: Chunk, done: Done) -> bytes:
        calls = [_call(call) for call in chunk.tool_calls]
        message = AnswerMessage(
            role="assistant",
            content=chunk.text or (None if calls else ""),
            reasoning=chunk.thinking or None,
            tool_calls=calls or None,
        )
        choice = AnswerChoice(
            index=0,
            message=message,
            logprobs=chat_logprobs(chunk.logprobs),
            finish_reason=finish_reason(done, calls=len(calls)),
        )
        return encode(
            ChatAnswer(
                id=self._id,
                object="chat.completion",
                created=self._created,
                model=self._model,
                system_fingerprint=FINGERPRINT,
                choices=[choice],
                usage=usage_of(done.figures),
            )
        )

    def refusal(self, error: ForerunError) -> bytes:
        return sse.refusal(error)

    def _begin(self) -> bytes:
        """The first event names the role, as soon as there is anything to tell."""
        if self._begun:
            return b""
        self._begun = True
        return self._piece(Delta(role="assistant", content=""))

    def _grown(self, chunk: Chunk) -> bytes:
        calls = [_call(call, self._calls + place) for place, call in enumerate(chunk.tool_calls)]
        self._calls += len(calls)
        delta = Delta(
            content=chunk.text or None,
            reasoning=chunk.thinking or None,
            tool_calls=calls or None,
        )
        if delta == Delta() and not chunk.logprobs:
            return b""
        return self._piece(delta, chunk.logprobs)

    def _piece(
        self,
        delta: Delta,
        logprobs: list[LogprobEntry] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = DeltaChoice(
            index=0,
            delta=delta,
            logprobs=chat_logprobs(logprobs or []),
            finish_reason=finish_reason,
        )
        return self._event([choice])

    def _event(self, choices: list[DeltaChoice], usage: Usage | None = None) -> bytes:
        return sse.data(
            ChatPiece(
                id=self._id,
                object="chat.completion.chunk",
                created=self._created,
                model=self._model,
                system_fingerprint=FINGERPRINT,
                choices=choices,
                usage=usage,
            )
        )


def finish_reason(done: Done, *, calls: int = 0) -> str:
    """An answer that was cut says so, whatever calls it holds (D15)."""
    if done.reason == "length":
        return "length"
    return "tool_calls" if calls else "stop"


def _call(call: ToolCall, index: int | None = None) -> Call:
    return Call(
        id=call_id(call),
        type="function",
        function=Function(name=call.name, arguments=call_arguments(call)),
        index=index,
    )
