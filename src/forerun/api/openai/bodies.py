"""Reading a request of OpenAI's dialect, whose clients send many fields that mean nothing here."""

import logging
from typing import TypeVar

import msgspec
from starlette.requests import Request

from forerun.api.bodies import WireStruct, read_bytes
from forerun.base.logs import logger
from forerun.base.shown import shown
from forerun.protocol.codec import decode

log = logger(__name__)

T = TypeVar("T", bound=WireStruct)


async def read_request(request: Request, kind: type[T]) -> T:
    """The request's JSON as a `kind`. RequestError for what is no such thing.

    Fields that are unknown are ignored, and named in one debug line (08 OPT).
    """
    data = await read_bytes(request) or b"{}"
    read = decode(data, kind)
    if log.isEnabledFor(logging.DEBUG):
        sent = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        ignored = sorted(set(sent) - set(kind.__struct_fields__))
        if ignored:
            log.debug("fields ignored: %s", ", ".join(map(shown, ignored)))
    return read
