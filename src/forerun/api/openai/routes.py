"""The routes under /v1."""

from starlette.routing import Route

from forerun.api.openai.responses import responses_routes
from forerun.api.services import Services


def openai_routes(services: Services) -> list[Route]:
    """Every route of the OpenAI-compatible dialect."""
    return [*responses_routes(services)]
