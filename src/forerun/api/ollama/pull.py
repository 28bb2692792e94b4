"""`/api/pull` fetches a model; `/api/push` says why there is none (08 API-4)."""

from collections.abc import AsyncGenerator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.bodies import read_body
from forerun.api.ollama.changes import imported
from forerun.api.ollama.named import NamedRequest
from forerun.api.ollama.progress import ProgressResponse
from forerun.api.services import Services
from forerun.base.errors import UnsupportedError
from forerun.protocol.imports import ImportStatus, PullRequest
from forerun.store.catalogue import source_of


class StreamedRequest(NamedRequest):
    stream: bool | None = None


def pull_routes(services: Services) -> list[Route]:
    """`/api/pull` and `/api/push`."""

    async def pull(request: Request) -> Response:
        asked = await read_body(request, StreamedRequest)
        name = asked.model_name()
        source_of(name)  # what the catalogue does not have needs no process to be refused

        def work() -> AsyncGenerator[ImportStatus, None]:
            return imported(services, name, PullRequest(name=str(name)))

        return ProgressResponse(work, stream=asked.stream is not False)

    return [
        Route("/api/pull", pull, methods=["POST"]),
        Route("/api/push", _push, methods=["POST"]),
    ]


async def _push(request: Request) -> Response:
    name = (await read_body(request, StreamedRequest)).model_name()
    raise UnsupportedError(
        f"{name} stays here: forerun fetches models and publishes none; upload its source files to "
        "hf.co with that site's own tools"
    )
