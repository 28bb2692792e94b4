"""Reading what a client sent: bounded, checked against a type, the field at fault named."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec
from starlette.requests import Request

from forerun.base.errors import RequestError, TooLargeError
from forerun.base.logs import logger
from forerun.base.shown import listed
from forerun.base.units import format_bytes
from forerun.protocol.codec import decode

MAX_BODY_BYTES = 32_000_000  # of text, many times the largest context
STALL_S = 30.0  # longest wait for the next piece of a body

log = logger(__name__)

T = TypeVar("T", bound="WireStruct")


class WireStruct(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of what other people's clients send and read: fields that we do not know are ignored.

    A field that is null is the same as one that is absent, so every optional one allows None (E13).
    """


async def read_body(request: Request, kind: type[T]) -> T:
    """The request's JSON as a `kind`. RequestError for what is no such thing."""
    data = await read_bytes(request) or b"{}"
    body = decode(data, kind)
    if log.isEnabledFor(logging.DEBUG):
        _name_unknown_fields(data, kind)
    return body


def _name_unknown_fields(data: bytes, kind: type[WireStruct]) -> None:
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    strange = sorted(set(msgspec.json.decode(data, type=dict[str, msgspec.Raw])) - known)
    if strange:
        log.debug("%s: unknown fields ignored: %s", kind.__name__, listed(strange))


async def read_bytes(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """What was sent, whole."""
    body = bytearray()
    async for piece in read_pieces(request, limit):
        body += piece
    return bytes(body)


async def read_pieces(request: Request, limit: int) -> AsyncIterator[bytes]:
    """What was sent, as it comes.

    TooLargeError as soon as it is over `limit` bytes or says that it will be; RequestError when
    nothing comes for `STALL_S`.
    """
    _check(int(request.headers.get("content-length", 0)), limit)
    count = 0
    pieces = request.stream()
    while True:
        try:
            async with asyncio.timeout(STALL_S):
                piece = await anext(pieces, None)
        except TimeoutError:
            raise RequestError(f"no byte of the request's body came for {STALL_S:g} s") from None
        if piece is None:
            return
        count += len(piece)
        _check(count, limit)
        yield piece


def _check(count: int, limit: int) -> None:
    if count > limit:
        raise TooLargeError(f"the request is over {format_bytes(limit)}; shorten it")
