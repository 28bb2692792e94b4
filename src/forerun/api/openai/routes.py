"""The routes under /v1."""

from starlette.routing import Route

from forerun.api.services import Services


def openai_routes(_services: Services) -> list[Route]:
    """Every route of the OpenAI-compatible dialect."""
    return []
