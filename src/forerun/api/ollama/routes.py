"""The native routes."""

from starlette.routing import Route

from forerun.api.ollama.chat import chat_routes
from forerun.api.ollama.embed import embed_routes
from forerun.api.ollama.generate import generate_routes
from forerun.api.ollama.ps import ps_routes
from forerun.api.ollama.status import status_routes
from forerun.api.services import Services


def ollama_routes(services: Services) -> list[Route]:
    """Every route of the native dialect."""
    return [
        *status_routes(services),
        *generate_routes(services),
        *chat_routes(services),
        *embed_routes(services),
        *ps_routes(services),
    ]
