"""GET /v1/models and /v1/models/NAME (spec 08 OAI-1)."""

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.bodies import WireStruct
from forerun.api.services import Services
from forerun.base.errors import NotFoundError, StoreError
from forerun.base.shown import shown
from forerun.protocol.codec import encode
from forerun.store.names import ModelName
from forerun.store.store import Entry, Store


class Model(WireStruct):
    """`created` is when the model was last written here, `owned_by` the namespace of its name."""

    id: str
    object: str
    created: int
    owned_by: str


class ModelList(WireStruct):
    object: str
    data: list[Model]


def model_routes(services: Services) -> list[Route]:
    """The list, and one model of it, whose name may hold slashes."""

    async def show_all(_: Request) -> Response:
        entries = await run_in_threadpool(services.store.entries)
        models = [_model(entry) for entry in entries if not entry.damage]
        return _json(ModelList(object="list", data=models))

    async def show(request: Request) -> Response:
        name = ModelName.parse(request.path_params["model"])
        return _json(_model(await run_in_threadpool(_entry, services.store, name)))

    return [
        Route("/v1/models", show_all, methods=["GET"]),
        Route("/v1/models/{model:path}", show, methods=["GET"]),
    ]


def _entry(store: Store, name: ModelName) -> Entry:
    """NotFoundError if there is no such model, StoreError if it is damaged."""
    found = [entry for entry in store.entries() if entry.name == name]
    if not found:
        raise NotFoundError(
            f"model {shown(str(name))} not found; GET /v1/models lists what is here"
        )
    if found[0].damage:
        raise StoreError(found[0].damage)
    return found[0]


def _model(entry: Entry) -> Model:
    return Model(
        id=str(entry.name),
        object="model",
        created=int(entry.modified_at),
        owned_by=entry.name.namespace,
    )


def _json(message: WireStruct) -> Response:
    return Response(encode(message), media_type="application/json")
