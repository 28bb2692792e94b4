"""The routes under /v1."""

from starlette.routing import Route

from forerun.api.openai.chat import chat_routes
from forerun.api.openai.completions import completion_routes
from forerun.api.openai.embeddings import embedding_routes
from forerun.api.openai.models import model_routes
from forerun.api.openai.responses import responses_routes
from forerun.api.services import Services


def openai_routes(services: Services) -> list[Route]:
    """Every route of the OpenAI-compatible dialect."""
    return [
        *chat_routes(services),
        *completion_routes(services),
        *model_routes(services),
        *embedding_routes(services),
        *responses_routes(services),
    ]
