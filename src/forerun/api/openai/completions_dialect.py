"""One answer of /v1/completions: an object, or pieces of it as events (spec 08 OAI-4, OAI-5)."""

import secrets
import time

from forerun.api.openai import sse
from forerun.api.openai.chat_dialect import finish_reason
from forerun.api.openai.chat_wire import FINGERPRINT
from forerun.api.openai.completions_wire import TextAnswer, TextChoice
from forerun.api.openai.logprobs import TextOffsets
from forerun.api.openai.usage import Usage, usage_of
from forerun.base.errors import ForerunError
from forerun.protocol.codec import encode
from forerun.protocol.events import Chunk, Done, Progress
from forerun.scheduler.scheduler import Lease


class TextDialect:
    """The `Dialect` of one request."""

    media_type = sse.MEDIA_TYPE

    def __init__(self, model: str, *, include_usage: bool) -> None:
        """`model` is the name that the client sent; `include_usage` is about a stream."""
        self._model = model
        self._include_usage = include_usage
        self._id = f"cmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._offsets = TextOffsets()

    def leased(self, lease: Lease) -> None:
        """Nothing of the loaded model is told."""

    def event(self, event: Progress | Chunk) -> bytes:
        if isinstance(event, Progress) or not (event.text or event.logprobs):
            return b""
        return sse.data(self._answer([self._choice(event, None)]))

    def quiet(self) -> bytes:
        return sse.QUIET

    def done(self, done: Done) -> bytes:
        end = sse.data(self._answer([self._choice(Chunk(), finish_reason(done))]))
        if self._include_usage:
            end += sse.data(self._answer([], usage_of(done.figures)))
        return end + sse.DONE

    def failed(self, error: ForerunError) -> bytes:
        return sse.broken_off(error)

    def whole(self, chunk: Chunk, done: Done) -> bytes:
        choice = self._choice(chunk, finish_reason(done))
        return encode(self._answer([choice], usage_of(done.figures)))

    def refusal(self, error: ForerunError) -> bytes:
        return sse.refusal(error)

    def _choice(self, chunk: Chunk, reason: str | None) -> TextChoice:
        return TextChoice(
            text=chunk.text,
            index=0,
            logprobs=self._offsets.columns(chunk.logprobs),
            finish_reason=reason,
        )

    def _answer(self, choices: list[TextChoice], usage: Usage | None = None) -> TextAnswer:
        return TextAnswer(
            id=self._id,
            object="text_completion",
            created=self._created,
            model=self._model,
            system_fingerprint=FINGERPRINT,
            choices=choices,
            usage=usage,
        )
