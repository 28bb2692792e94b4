"""Bytes of a response to a client: whole, or piece by piece to one that may stop reading."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from starlette.types import Send

from forerun.api.errors import NO_RETRY
from forerun.base.errors import UnsupportedError

STALL_S = 30.0  # longest wait for a reader that takes nothing
QUIET_S = 5.0  # longest silence in a stream
JSON = "application/json"


async def send_whole(send: Send, status: int, body: bytes) -> None:
    """A JSON body."""
    length = (b"content-length", str(len(body)).encode())
    hints = NO_RETRY if status == UnsupportedError.status else {}
    extra = [(name.encode(), value.encode()) for name, value in hints.items()]
    await _start(send, status, JSON, [length, *extra])
    await send({"type": "http.response.body", "body": body})


class LiveStream:
    """A stream to one client, written by the task that entered it.

    After each silence it gives a sign of life, so that no client's timer fires (E19). A reader that
    does not take it is waited for, but not for ever, since it holds its model (05 DEC-8): the
    writer is cancelled. One task beside the writer sees to that, which costs a written piece
    nothing.
    """

    def __init__(
        self, send: Send, media_type: str, sign: Callable[[], bytes], quiet_s: float = QUIET_S
    ) -> None:
        """`sign` says what is written after `quiet_s` in which no bytes went out."""
        self.begun = False
        self._send = send
        self._media_type = media_type
        self._sign = sign
        self._quiet_s = quiet_s
        self._turn = asyncio.Lock()
        self._ended = False
        self._written_at = asyncio.get_running_loop().time()

    async def __aenter__(self) -> "LiveStream":
        writer = asyncio.current_task()
        assert writer is not None, "a stream is written by a task"
        self._watch = asyncio.create_task(self._watch_over(writer))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()
        with suppress(asyncio.CancelledError):
            await self._watch

    async def begin(self) -> None:
        """The head, once; its status is 200 whatever comes."""
        if not self.begun:
            async with self._turn:
                await self._begin()

    async def write(self, piece: bytes) -> None:
        """The head goes out with the first piece that is not empty."""
        if not piece:
            return
        async with self._turn:
            if self._ended:  # a sign of life that came too late
                return
            await self._begin()
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self._written_at = asyncio.get_running_loop().time()

    async def end(self) -> None:
        """The end of a stream that is whole; one without it is seen to be cut off."""
        async with self._turn:
            self._ended = True
            await self._send({"type": "http.response.body", "body": b""})

    async def _begin(self) -> None:
        if not self.begun:
            self.begun = True
            await _start(self._send, 200, self._media_type, [])

    async def _watch_over(self, writer: "asyncio.Task[object]") -> None:
        loop = asyncio.get_running_loop()
        while True:
            rest_s = self._written_at + self._quiet_s - loop.time()
            if rest_s > 0:
                await asyncio.sleep(rest_s)
            elif not await self._gave_sign():
                writer.cancel()
                return

    async def _gave_sign(self) -> bool:
        """Whether a sign of life went out, behind whatever is being written."""
        try:
            async with asyncio.timeout(STALL_S):
                await self.write(self._sign())
        except TimeoutError:
            return False
        self._written_at = asyncio.get_running_loop().time()
        return True


async def _start(
    send: Send, status: int, media_type: str, extra: list[tuple[bytes, bytes]]
) -> None:
    headers = [(b"content-type", media_type.encode()), (b"cache-control", b"no-cache"), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
