"""The runner's HTTP: a thin door in front of `Service` (spec 05 HTP)."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from forerun.base.errors import (
    BusyError,
    CancelledError,
    ForerunError,
    RequestError,
    internal,
    one_line,
)
from forerun.base.logs import logger
from forerun.base.units import format_bytes
from forerun.protocol.codec import decode, encode, encode_line
from forerun.protocol.events import Chunk, Done, Embeddings, Failed, Text, Tokens
from forerun.protocol.requests import (
    CompletionRequest,
    DetokenizeRequest,
    EmbedRequest,
    TokenizeRequest,
)
from forerun.runner.state import LoadState
from forerun.runner.stream import EventStream

if TYPE_CHECKING:
    from forerun.runner.service import Service

log = logger(__name__)

REFRESH_S = 0.05  # longest wait for fresh memory figures (HTP-2)
CLEAR_S = 10.0  # longest wait for answers to end, to clear the prefix cache
MAX_BODY_BYTES = 32_000_000  # of text, many times the largest context
MAX_TEXTS = 10_000  # to embed in one request; each waits for the device on its own, in 2 KB
COALESCE_S = 0.015  # at most one write of text in this time; first and last at once (DEC-8)


class Loading(Protocol):
    """What the routes stand on: the state of the load and, once it is over, the service."""

    state: LoadState
    service: "Service | None"


def make_app(loading: Loading) -> Starlette:
    """The routes, which answer from the first moment of the process."""
    doors = _Doors(loading)
    return Starlette(
        routes=[
            Route("/v1/status", doors.status, methods=["GET"]),
            Route("/v1/completions", doors.completions, methods=["POST"]),
            Route("/v1/tokenize", doors.tokenize, methods=["POST"]),
            Route("/v1/detokenize", doors.detokenize, methods=["POST"]),
            Route("/v1/embed", doors.embed, methods=["POST"]),
            Route("/v1/cache", doors.cache, methods=["GET", "DELETE"]),
        ],
        exception_handlers={
            ForerunError: _refused,
            ClientDisconnect: _gone,
            Exception: _broken,
        },
    )


class _Doors:
    def __init__(self, loading: Loading) -> None:
        self._loading = loading

    async def status(self, request: Request) -> Response:
        if request.query_params.get("watch") == "1":
            return StreamingResponse(self._changes(), media_type="application/x-ndjson")
        service = self._loading.service
        if service is None:
            return _json(self._loading.state.status)
        refreshed = asyncio.wrap_future(service.refresh())
        await asyncio.wait({refreshed}, timeout=REFRESH_S)
        return _json(service.status())

    async def completions(self, request: Request) -> Response:
        asked = decode(await _body(request), CompletionRequest)
        stream = await run_in_threadpool(self._ready().complete, asked)
        return _EventResponse(stream)

    async def tokenize(self, request: Request) -> Response:
        asked = decode(await _body(request), TokenizeRequest)
        tokens = await run_in_threadpool(
            partial(self._ready().tokenize, asked.text, special=asked.special)
        )
        return _json(Tokens(tokens=tokens))

    async def detokenize(self, request: Request) -> Response:
        asked = decode(await _body(request), DetokenizeRequest)
        text = await run_in_threadpool(self._ready().detokenize, asked.tokens)
        return _json(Text(text=text))

    async def embed(self, request: Request) -> Response:
        asked = decode(await _body(request), EmbedRequest)
        if len(asked.texts) > MAX_TEXTS:
            raise RequestError(
                f"the request holds {len(asked.texts)} texts; send at most {MAX_TEXTS} in each"
            )
        work = await run_in_threadpool(self._ready().start_embedding, asked)
        vectors = asyncio.gather(*map(asyncio.wrap_future, work.vectors))
        left = asyncio.ensure_future(_left(request.receive))
        left.add_done_callback(lambda _: work.cancel())
        try:
            return _json(Embeddings(vectors=await vectors, prompt_tokens=work.prompt_tokens))
        except asyncio.CancelledError:
            if left.done():
                raise CancelledError("the client left") from None
            raise
        finally:
            left.cancel()  # which also gives up what is left of the work

    async def cache(self, request: Request) -> Response:
        """GET shows the trie, DELETE empties it first."""
        service = self._ready()
        work = (
            partial(service.clear_cache, wait_s=CLEAR_S)
            if request.method == "DELETE"
            else service.cache
        )
        return _json(await run_in_threadpool(work))

    def _ready(self) -> "Service":
        """Raises BusyError before the model is loaded (HTP-3)."""
        service = self._loading.service
        if service is None:
            raise BusyError("the model is not loaded yet; wait until /v1/status says ready")
        return service

    async def _changes(self) -> AsyncIterator[bytes]:
        async for status in self._loading.state.changes():
            yield encode_line(status)


class _EventResponse(StreamingResponse):
    """Streams a request's events; however the response ends, the request ends with it (HTP-5)."""

    def __init__(self, stream: EventStream) -> None:
        super().__init__(_lines(stream), media_type="application/x-ndjson")
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.cancel()


async def _lines(stream: EventStream) -> AsyncIterator[bytes]:
    loop, arrived = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        loop.call_soon_threadsafe(arrived.set)

    stream.on_event(wake)
    while True:
        await arrived.wait()
        arrived.clear()
        while events := stream.take():
            yield b"".join(encode_line(event) for event in events)
            if isinstance(events[-1], Done | Failed):
                return
            if any(isinstance(event, Chunk) for event in events):  # no wait before the first token
                rest = loop.call_later(COALESCE_S, arrived.set)  # or until the answer's end
                await arrived.wait()
                arrived.clear()
                rest.cancel()


async def _body(request: Request) -> bytes:
    """What was sent, as long as that is a request and not a way to fill the memory.

    What is too long is read to its end all the same: a client that is still sending would see its
    connection break, and not why.
    """
    body, size = bytearray(), 0
    async for piece in request.stream():
        size += len(piece)
        if size <= MAX_BODY_BYTES:
            body += piece
    if size > MAX_BODY_BYTES:
        raise RequestError(f"the request is over {format_bytes(MAX_BODY_BYTES)}; shorten it")
    return bytes(body)


async def _left(receive: Receive) -> None:
    """Return when the client is gone; what it sent has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _gone(_request: Request, _error: Exception) -> Response:
    """The client left while it was sending; nobody reads this."""
    return PlainTextResponse("", status_code=CancelledError.status)


def _json(message: msgspec.Struct) -> Response:
    return Response(encode(message), media_type="application/json")


async def _refused(_: Request, error: Exception) -> Response:
    status = error.status if isinstance(error, ForerunError) else 500
    return PlainTextResponse(one_line(error), status)


async def _broken(request: Request, error: Exception) -> Response:
    log.error("%s failed", request.url.path, exc_info=error)
    return PlainTextResponse(str(internal(error)), 500)
