"""The server's routes and what surrounds them."""

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.api import metrics
from forerun.api.errors import HANDLERS, error_response, unexpected
from forerun.api.ollama.routes import ollama_routes
from forerun.api.openai.routes import openai_routes
from forerun.api.security import AccessRules, Guard
from forerun.api.services import Services
from forerun.base.logs import logger

log = logger(__name__)


def make_app(services: Services, rules: AccessRules | None = None) -> Starlette:
    """The application over `services`, which whoever serves it closes.

    Without `rules` it answers to loopback names and IP addresses, and to no web page but this
    machine's.
    """

    async def show_metrics(_: Request) -> Response:
        residents = await services.scheduler.residents()
        services.metrics.waiting.set(services.scheduler.waiting)
        services.metrics.loaded.set(len(residents))
        services.metrics.remember_memory(
            {str(each.name): msgspec.structs.asdict(each.status.memory) for each in residents}
        )
        return Response(services.metrics.text(), media_type=metrics.CONTENT_TYPE)

    return Starlette(
        routes=[
            *ollama_routes(services),
            *openai_routes(services),
            Route("/metrics", show_metrics, methods=["GET"]),
        ],
        middleware=[Middleware(Guard, rules=rules or AccessRules()), Middleware(Border)],
        exception_handlers=HANDLERS,
    )


class Border:
    """A bug of ours is logged with its trace and told without it.

    An answer that had begun stays without its end, and its connection is closed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as error:  # the border of a request
            log.exception("%s failed", scope["path"])
            if not begun:
                await error_response(scope["path"], unexpected(error))(scope, receive, send)
