"""The answer of a pull or create: lines of progress, or one word at the end (08 API-3, API-4)."""

import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forerun.api.bodies import WireStruct
from forerun.api.errors import error_response, native_error
from forerun.api.response import until_gone
from forerun.api.sending import QUIET_S, LiveStream
from forerun.base.errors import ForerunError
from forerun.protocol.codec import encode, encode_line
from forerun.protocol.imports import ImportStatus
from forerun.store.manifest import encode_json

LINES = "application/x-ndjson"

Work = Callable[[], AsyncGenerator[ImportStatus, None]]


class ProgressLine(WireStruct):
    """A client draws a bar for each digest, and a line of text where there is none."""

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None


SUCCESS = ProgressLine(status="success")


class ProgressResponse(Response):
    """Runs `work` while the client is there; its end is success.

    The head of a stream waits for the first counted bytes, for the end, or for a silence, so that
    an error found on the way there has its status.
    """

    def __init__(self, work: Work, *, stream: bool, quiet_s: float = QUIET_S) -> None:
        super().__init__()
        self._work = work
        self._stream = stream
        self._quiet_s = quiet_s
        self._held = b""
        self._last = encode_line(ProgressLine(status="starting"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer() -> None:
            response = await self._streamed(send) if self._stream else await self._gathered()
            if response is not None:
                await response(scope, receive, send)

        await until_gone(receive, answer())

    async def _gathered(self) -> Response:
        try:
            async with aclosing(self._work()) as steps:
                async for _ in steps:
                    pass
        except ForerunError as error:
            return error_response("", error)
        return Response(encode(SUCCESS), media_type="application/json")

    async def _streamed(self, send: Send) -> Response | None:
        """None once the stream was sent; else what to answer instead."""
        async with LiveStream(send, LINES, self._while_quiet, self._quiet_s) as stream:
            try:
                async with aclosing(self._lines()) as lines:
                    async for line in lines:
                        await stream.write(line)
            except ForerunError as error:
                if not stream.begun:
                    return error_response("", error)
                await stream.write(encode_json(native_error(error)) + b"\n")
            await stream.end()
        return None

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        """Empty where a line is held back for now."""
        async with aclosing(self._work()) as steps:
            async for step in steps:
                self._last = encode_line(progress_line(step))
                self._held += self._last
                yield b"" if step.total is None else self._released()
        self._held += encode_line(SUCCESS)
        yield self._released()

    def _while_quiet(self) -> bytes:
        return self._released() or self._last

    def _released(self) -> bytes:
        held, self._held = self._held, b""
        return held


def progress_line(step: ImportStatus) -> ProgressLine:
    """Where bytes are counted and belong to no one blob, the step itself is given a digest."""
    digest = step.digest
    if digest is None and step.total is not None:
        digest = f"sha256:{hashlib.sha256(step.status.encode()).hexdigest()}"
    return ProgressLine(
        status=step.status, digest=digest, total=step.total, completed=step.completed
    )
