"""Whether a server is there, and which."""

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from forerun import __version__
from forerun.api.services import Services
from forerun.store.manifest import encode_json
from forerun.store.versions import OLLAMA_COMPAT


def status_routes(_services: Services) -> list[Route]:
    """`/` and `/api/version`."""
    return [
        Route("/", _alive, methods=["GET", "HEAD"]),
        Route("/api/version", _version, methods=["GET", "HEAD"]),
    ]


async def _alive(_: Request) -> Response:
    return PlainTextResponse("Ollama is running")


async def _version(_: Request) -> Response:
    body = encode_json({"version": OLLAMA_COMPAT, "forerun": __version__})
    return Response(body, media_type="application/json")
