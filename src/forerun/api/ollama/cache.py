"""POST /api/cache: what a loaded model has cached, and its clearing. A door of our own (02 STR)."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.bodies import read_body
from forerun.api.ollama.named import NamedRequest
from forerun.api.services import Services
from forerun.base.errors import RequestError
from forerun.base.logs import event, logger
from forerun.base.shown import shown
from forerun.protocol.cache import CacheReport
from forerun.protocol.codec import encode

log = logger(__name__)


class CacheRequest(NamedRequest):
    clear: object = None

    @property
    def clears(self) -> bool:
        """RequestError for what is neither true nor false."""
        if self.clear is None or isinstance(self.clear, bool):
            return bool(self.clear)
        raise RequestError(f"clear is {shown(self.clear)}; it must be true or false")


class ModelCache(CacheReport):
    """The runner's report, and whose it is."""

    model: str


def cache_routes(services: Services) -> list[Route]:
    """`/api/cache`, which loads nothing and lets idle models become idle."""

    async def show(request: Request) -> Response:
        asked = await read_body(request, CacheRequest)
        name, clear = asked.model_name(), asked.clears
        report = await services.scheduler.cache(name, clear=clear)
        if clear:
            event(log, "cache cleared", model=str(name), freed=report.freed_bytes)
        body = ModelCache(model=str(name), **msgspec.structs.asdict(report))
        return Response(encode(body), media_type="application/json")

    return [Route("/api/cache", show, methods=["POST"])]
