"""The server's routes and what surrounds them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api import metrics
from forerun.api.errors import HANDLERS
from forerun.api.ollama.routes import ollama_routes
from forerun.api.openai.routes import openai_routes
from forerun.api.services import Services


def make_app(services: Services) -> Starlette:
    """The application over `services`, whose scheduler it closes at its end."""

    async def show_metrics(_: Request) -> Response:
        residents = await services.scheduler.residents()
        services.metrics.waiting.set(services.scheduler.waiting)
        services.metrics.loaded.set(len(residents))
        return Response(services.metrics.text(), media_type=metrics.CONTENT_TYPE)

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await services.scheduler.close()

    return Starlette(
        routes=[
            *ollama_routes(services),
            *openai_routes(services),
            Route("/metrics", show_metrics, methods=["GET"]),
        ],
        exception_handlers=HANDLERS,
        lifespan=life,
    )
