"""The native routes."""

from starlette.routing import Route

from forerun.api.ollama.status import status_routes
from forerun.api.services import Services


def ollama_routes(services: Services) -> list[Route]:
    """Every route of the native dialect."""
    return [*status_routes(services)]
