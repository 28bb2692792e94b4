"""GET /api/ps: the models that are loaded (08 API-1)."""

from collections.abc import Sequence
from datetime import UTC, datetime

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.bodies import WireStruct
from forerun.api.ollama.details import Details, details_of
from forerun.api.services import Services
from forerun.base.errors import StoreError
from forerun.protocol.codec import encode
from forerun.scheduler.scheduler import Resident
from forerun.store.stored import StoredModel

NEVER = datetime(2318, 1, 1, tzinfo=UTC)  # within what Go's durations and Python's dates can hold
CPU = "cpu"
UNKNOWN = Details(
    parent_model="",
    format="",
    family="",
    families=[],
    parameter_size="",
    quantization_level="",
    context_length=None,
    embedding_length=None,
)


class LoadedModel(WireStruct):
    """Sizes are bytes of memory; `digest` is the manifest's, without its scheme.

    `drafters` is ours: what the option `draft` may name besides auto and off.
    """

    name: str
    model: str
    size: int
    digest: str
    details: Details
    expires_at: datetime
    size_vram: int
    context_length: int
    drafters: list[str]


class LoadedModels(WireStruct):
    """The body."""

    models: list[LoadedModel]


def ps_routes(services: Services) -> list[Route]:
    """`/api/ps`."""

    async def show(_: Request) -> Response:
        residents = await services.scheduler.residents()
        body = encode(await run_in_threadpool(loaded_models, residents))
        return Response(body, media_type="application/json")

    return [Route("/api/ps", show, methods=["GET"])]


def loaded_models(residents: Sequence[Resident]) -> LoadedModels:
    """Reads what is not yet known of a model from its files."""
    return LoadedModels(models=[_loaded_model(resident) for resident in residents])


def _loaded_model(resident: Resident) -> LoadedModel:
    memory = resident.status.memory
    size = memory.weights + memory.caches + memory.snapshots
    return LoadedModel(
        name=str(resident.name),
        model=str(resident.name),
        size=size,
        digest=resident.model.digest.hex,
        details=_details(resident.model),
        expires_at=expiry(resident.expires_at),
        size_vram=0 if resident.device == CPU else size,
        context_length=resident.status.context_length,
        drafters=resident.status.drafters,
    )


def expiry(epoch_s: float | None) -> datetime:
    """A far day for a model that stays, which clients read as a date all the same."""
    if epoch_s is None or epoch_s >= NEVER.timestamp():
        return NEVER
    return datetime.fromtimestamp(epoch_s, UTC)


def _details(model: StoredModel) -> Details:
    """A model whose files were taken away is still loaded."""
    try:
        return details_of(model)
    except StoreError:
        return UNKNOWN
