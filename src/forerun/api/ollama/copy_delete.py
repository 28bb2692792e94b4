"""`/api/copy` and `/api/delete`: names come and go (08 API-4)."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.bodies import WireStruct, read_body
from forerun.api.ollama.changes import changing
from forerun.api.ollama.named import NamedRequest, parse_name
from forerun.api.services import Services
from forerun.base.logs import event, logger

log = logger(__name__)


class CopyRequest(WireStruct):
    source: str | None = None
    destination: str | None = None


def copy_delete_routes(services: Services) -> list[Route]:
    """`/api/copy` and `/api/delete`."""

    async def copy(request: Request) -> Response:
        asked = await read_body(request, CopyRequest)
        source = parse_name("source", asked.source)
        destination = parse_name("destination", asked.destination)
        async with changing(services, destination):
            await run_in_threadpool(services.store.copy, source, destination)
        event(log, "copied", source=str(source), destination=str(destination))
        return Response()

    async def delete(request: Request) -> Response:
        name = (await read_body(request, NamedRequest)).model_name()
        async with changing(services, name):
            await run_in_threadpool(services.store.delete, name)
        event(log, "deleted", model=str(name))
        return Response()

    return [
        Route("/api/copy", copy, methods=["POST"]),
        Route("/api/delete", delete, methods=["DELETE"]),
    ]
