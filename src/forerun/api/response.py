"""An answer as an HTTP response: a stream or one object, in a dialect's words.

Everything after the body was parsed happens inside the response, so that a client that goes away
while its model loads, while its prompt is evaluated or while text comes cancels its request in the
same way (05 HTP-5, 08 SCH-8).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing, contextmanager, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forerun.api.answers import Ask, answer
from forerun.api.dialect import Dialect
from forerun.api.errors import unexpected
from forerun.api.sending import QUIET_S, LiveStream, send_whole
from forerun.api.services import Services
from forerun.base.errors import CancelledError, ForerunError
from forerun.base.logs import logger
from forerun.protocol.events import Chunk, Done, Progress

log = logger(__name__)


Event = Progress | Chunk | Done


class AnswerResponse(Response):
    """Errors that come before the first byte have a status; later ones end the stream."""

    def __init__(
        self,
        services: Services,
        ask: Ask,
        dialect: Dialect,
        *,
        stream: bool,
        quiet_s: float = QUIET_S,
    ) -> None:
        super().__init__()
        self._services = services
        self._ask = ask
        self._dialect = dialect
        self._stream = stream
        self._quiet_s = quiet_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        work = self._send_stream(send) if self._stream else self._send_whole(send)
        await until_gone(receive, work)

    async def _send_whole(self, send: Send) -> None:
        try:
            with _border():
                async with aclosing(self._events()) as events:
                    body = self._dialect.whole(*await _gathered(events))
        except ForerunError as error:
            await send_whole(send, error.status, self._dialect.refusal(error))
            return
        await send_whole(send, 200, body)

    async def _send_stream(self, send: Send) -> None:
        """The head goes out with the first event, or once there was silence long enough."""
        dialect, refused = self._dialect, None
        async with LiveStream(send, dialect.media_type, dialect.quiet, self._quiet_s) as stream:
            try:
                async with aclosing(self._pieces()) as pieces:
                    async for piece in pieces:
                        await stream.begin()
                        await stream.write(piece)
            except ForerunError as error:
                if error.status == CancelledError.status:
                    return  # nobody reads; a stream without its end is seen to be cut off
                if stream.begun:
                    await stream.write(dialect.failed(error))
                else:
                    refused = error
            if refused is None:
                await stream.end()
        if refused is not None:
            await send_whole(send, refused.status, dialect.refusal(refused))

    async def _pieces(self) -> AsyncGenerator[bytes, None]:
        with _border():
            async with aclosing(self._events()) as events:
                async for event in events:
                    if isinstance(event, Done):
                        yield self._dialect.done(event)
                    else:
                        yield self._dialect.event(event)

    def _events(self) -> AsyncGenerator[Event, None]:
        return answer(self._services, self._ask, self._dialect.leased)


class WorkResponse(Response):
    """One JSON body that takes its time; `work` is cancelled when the client goes away."""

    def __init__(
        self, work: Callable[[], Awaitable[bytes]], refusal: Callable[[ForerunError], bytes]
    ) -> None:
        """`refusal` is the body of an error."""
        super().__init__()
        self._work = work
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        await until_gone(receive, self._answer(send))

    async def _answer(self, send: Send) -> None:
        try:
            with _border():
                body = await self._work()
        except ForerunError as error:
            await send_whole(send, error.status, self._refusal(error))
            return
        await send_whole(send, 200, body)


@contextmanager
def _border() -> Iterator[None]:
    """The border of a request: a bug of ours is logged here and told as an internal error."""
    try:
        yield
    except ForerunError:
        raise
    except Exception as error:
        log.exception("a request failed")
        raise unexpected(error) from None


async def until_gone(receive: Receive, work: Coroutine[None, None, None]) -> None:
    """Run `work` to its end, or cancel it when the client goes away."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        task.cancel()
        with suppress(asyncio.CancelledError, CancelledError, OSError):
            await task


async def _gathered(events: AsyncIterator[Event]) -> tuple[Chunk, Done]:
    chunks: list[Chunk] = []
    async for event in events:
        if isinstance(event, Done):
            return merged(chunks), event
        if isinstance(event, Chunk):
            chunks.append(event)
    raise AssertionError("an answer ends with Done or with an error")


def merged(chunks: list[Chunk]) -> Chunk:
    """All chunks of an answer as one."""
    return Chunk(
        thinking="".join(chunk.thinking for chunk in chunks),
        text="".join(chunk.text for chunk in chunks),
        tool_calls=[call for chunk in chunks for call in chunk.tool_calls],
        tokens=[token for chunk in chunks for token in chunk.tokens],
        logprobs=[entry for chunk in chunks for entry in chunk.logprobs],
    )


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
