"""`/api/blobs/:digest`: files that a create is to be made of (08 API-3)."""

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.bodies import read_pieces
from forerun.api.services import Services
from forerun.store.blobs import CHUNK_BYTES, Digest

T = TypeVar("T")


def blob_routes(services: Services) -> list[Route]:
    """`HEAD` asks whether a blob is here, `POST` sends it."""
    uploads = services.uploads

    async def has(request: Request) -> Response:
        digest = read_digest(request.path_params["digest"])
        found = await run_in_threadpool(uploads.has, digest)
        return Response(status_code=200 if found else 404)

    async def receive(request: Request) -> Response:
        digest = read_digest(request.path_params["digest"])
        async with in_threads(uploads.receive(digest)) as file:
            async for piece in _gathered(request):
                await run_in_threadpool(file.write, piece)
        return Response(status_code=201)

    return [
        Route("/api/blobs/{digest}", has, methods=["HEAD"]),
        Route("/api/blobs/{digest}", receive, methods=["POST"]),
    ]


def read_digest(text: str) -> Digest:
    """The digest in a client's words: file names of blobs and capital letters are fine too."""
    scheme, mark, digits = text.partition("-")
    return Digest.parse((f"{scheme}:{digits}" if mark else text).lower())


@asynccontextmanager
async def in_threads(context: AbstractContextManager[T]) -> AsyncIterator[T]:
    """A context whose beginning and good end wait for the disk.

    Its end after an error is short, and comes also while the request is being cancelled.
    """
    value = await run_in_threadpool(context.__enter__)
    try:
        yield value
    except BaseException:
        context.__exit__(*sys.exc_info())
        raise
    await run_in_threadpool(context.__exit__, None, None, None)


async def _gathered(request: Request) -> AsyncIterator[bytearray]:
    """The body in pieces that are worth a thread each; memory is bounded by one of them."""
    gathered = bytearray()
    async for piece in read_pieces(request, sys.maxsize):
        gathered += piece
        if len(gathered) >= CHUNK_BYTES:
            yield gathered
            gathered = bytearray()
    yield gathered
