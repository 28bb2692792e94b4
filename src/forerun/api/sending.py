"""Bytes of a response to a client: whole, or piece by piece to one that may stop reading."""

import asyncio

from starlette.types import Send

from forerun.api.errors import NO_RETRY
from forerun.base.errors import CancelledError, UnsupportedError

STALL_S = 30.0  # longest wait for a reader that takes nothing
JSON = "application/json"


async def send_whole(send: Send, status: int, body: bytes) -> None:
    """A JSON body."""
    length = (b"content-length", str(len(body)).encode())
    hints = NO_RETRY if status == UnsupportedError.status else {}
    extra = [(name.encode(), value.encode()) for name, value in hints.items()]
    await _start(send, status, JSON, [length, *extra])
    await send({"type": "http.response.body", "body": body})


async def begin_stream(send: Send, media_type: str) -> None:
    """The head of a stream, whose status is 200 whatever comes."""
    await _start(send, 200, media_type, [])


async def write_piece(send: Send, piece: bytes) -> None:
    """Waits for a slow reader, but not for ever: it holds its model (05 DEC-8).

    Raises CancelledError for one that takes nothing.
    """
    try:
        async with asyncio.timeout(STALL_S):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except TimeoutError:
        raise CancelledError("nobody reads the answer any more") from None


async def end_stream(send: Send) -> None:
    """The end of a stream that is whole; one without it is seen to be cut off."""
    await send({"type": "http.response.body", "body": b""})


async def _start(
    send: Send, status: int, media_type: str, extra: list[tuple[bytes, bytes]]
) -> None:
    headers = [(b"content-type", media_type.encode()), (b"cache-control", b"no-cache"), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
