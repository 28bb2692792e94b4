"""The native routes."""

from starlette.routing import Route

from forerun.api.ollama.blobs import blob_routes
from forerun.api.ollama.cache import cache_routes
from forerun.api.ollama.chat import chat_routes
from forerun.api.ollama.copy_delete import copy_delete_routes
from forerun.api.ollama.create import create_routes
from forerun.api.ollama.embed import embed_routes
from forerun.api.ollama.generate import generate_routes
from forerun.api.ollama.ps import ps_routes
from forerun.api.ollama.pull import pull_routes
from forerun.api.ollama.show import show_routes
from forerun.api.ollama.status import status_routes
from forerun.api.ollama.tags import tags_routes
from forerun.api.services import Services


def ollama_routes(services: Services) -> list[Route]:
    """Every route of the native dialect."""
    return [
        *status_routes(services),
        *generate_routes(services),
        *chat_routes(services),
        *embed_routes(services),
        *ps_routes(services),
        *cache_routes(services),
        *tags_routes(services),
        *show_routes(services),
        *copy_delete_routes(services),
        *pull_routes(services),
        *create_routes(services),
        *blob_routes(services),
    ]
