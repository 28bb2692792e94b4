"""`/api/tags`: the models that are here, newest first (08 API-1)."""

from datetime import UTC, datetime

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.bodies import WireStruct
from forerun.api.ollama.details import Details, details_of
from forerun.api.services import Services
from forerun.base.errors import ForerunError
from forerun.base.logs import logger
from forerun.protocol.codec import encode
from forerun.store.store import Entry, Store

log = logger(__name__)


class TaggedModel(WireStruct):
    """One line of the list."""

    name: str
    model: str
    modified_at: datetime
    size: int
    digest: str
    details: Details
    capabilities: list[str]


class TagsAnswer(WireStruct):
    models: list[TaggedModel]


def tags_routes(services: Services) -> list[Route]:
    """`/api/tags`."""

    async def tags(_: Request) -> Response:
        body = await run_in_threadpool(lambda: encode(list_models(services.store)))
        return Response(body, media_type="application/json")

    return [Route("/api/tags", tags, methods=["GET", "HEAD"])]


def list_models(store: Store) -> TagsAnswer:
    """Models that cannot be opened are left out, with a warning in the log."""
    listed = (_listed(store, entry) for entry in store.entries())
    return TagsAnswer(models=[model for model in listed if model is not None])


def _listed(store: Store, entry: Entry) -> TaggedModel | None:
    try:
        stored = store.get(entry.name)
        return TaggedModel(
            name=str(entry.name),
            model=str(entry.name),
            modified_at=datetime.fromtimestamp(entry.modified_at, UTC),
            size=entry.size,
            digest=entry.digest.hex,
            details=details_of(stored),
            capabilities=list(stored.config.capabilities),
        )
    except ForerunError as error:
        log.warning("%s is left out of the list: %s", entry.name, error)
        return None
