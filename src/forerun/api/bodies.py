"""Reading what a client sent: bounded, checked against a type, the field at fault named."""

from typing import TypeVar

import msgspec
from starlette.requests import Request

from forerun.base.errors import RequestError
from forerun.base.units import format_bytes
from forerun.protocol.codec import decode

MAX_BODY_BYTES = 32_000_000  # of text, many times the largest context

T = TypeVar("T", bound="WireStruct")


class WireStruct(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Base of what other people's clients send and read: fields that we do not know are ignored.

    A field that is null is the same as one that is absent, so every optional one allows None (E13).
    """


async def read_body(request: Request, kind: type[T]) -> T:
    """The request's JSON as a `kind`. RequestError for what is no such thing."""
    data = await read_bytes(request)
    return decode(data or b"{}", kind)


async def read_bytes(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """What was sent. RequestError as soon as it is over `limit` bytes."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise RequestError(f"the request is over {format_bytes(limit)}; shorten it")
    return bytes(body)
