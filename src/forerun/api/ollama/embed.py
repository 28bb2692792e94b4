"""POST /api/embed and the older /api/embeddings: texts as vectors (08 API-13).

No input, or an empty text alone, only loads or unloads the model, as in Ollama, and there are no
vectors. An empty list, or an empty text among others, is refused: whoever sends one counts on a
vector for each.
"""

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.answers import Ask, EmbedAsk, Embedded, embed, hold
from forerun.api.bodies import WireStruct, read_body
from forerun.api.ollama.dialect import nanoseconds, refusal
from forerun.api.options import load_options, read_keep_alive, read_options
from forerun.api.response import WorkResponse
from forerun.api.services import Services
from forerun.base.errors import RequestError
from forerun.protocol.codec import encode
from forerun.protocol.requests import EmbedRequest, JsonValue
from forerun.scheduler.scheduler import Lease
from forerun.store.names import ModelName


class ModelBody(WireStruct):
    """What both routes have in common."""

    model: str
    options: dict[str, JsonValue] | None = None
    keep_alive: JsonValue = None


class EmbedBody(ModelBody):
    """`truncate` cuts the end of a text that is longer than the context; it does by default."""

    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None


class EmbeddingsBody(ModelBody):
    """The older form: one text."""

    prompt: str | None = None


class EmbedReply(WireStruct):
    """`prompt_eval_count` is of all texts together."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class EmbeddingsReply(WireStruct):
    """The older form's one vector."""

    embedding: list[float]


def embed_routes(services: Services) -> list[Route]:
    """`/api/embed` and `/api/embeddings`."""

    async def embed_texts(request: Request) -> Response:
        arrived = time.monotonic()
        body = await read_body(request, EmbedBody)
        ask = embed_ask(
            body,
            EmbedRequest(
                texts=texts_of(body.input),
                dimensions=body.dimensions,
                truncate=body.truncate is not False,
            ),
        )

        async def work() -> bytes:
            found = await _embedded(services, ask)
            return encode(
                EmbedReply(
                    model=body.model,
                    embeddings=found.vectors,
                    total_duration=nanoseconds(time.monotonic() - arrived),
                    load_duration=nanoseconds(found.load_s),
                    prompt_eval_count=found.prompt_tokens,
                )
            )

        return WorkResponse(work, refusal)

    async def embed_one(request: Request) -> Response:
        body = await read_body(request, EmbeddingsBody)
        ask = embed_ask(body, EmbedRequest(texts=texts_of(body.prompt)))

        async def work() -> bytes:
            found = await _embedded(services, ask)
            return encode(EmbeddingsReply(embedding=found.vectors[0] if found.vectors else []))

        return WorkResponse(work, refusal)

    return [
        Route("/api/embed", embed_texts, methods=["POST"]),
        Route("/api/embeddings", embed_one, methods=["POST"]),
    ]


def embed_ask(body: ModelBody, request: EmbedRequest) -> EmbedAsk:
    """Raises RequestError naming the field at fault."""
    return EmbedAsk(
        model=ModelName.parse(body.model),
        request=request,
        load=load_options(read_options(body.options)),
        keep_alive_s=read_keep_alive(body.keep_alive),
    )


def texts_of(given: str | list[str] | None) -> list[str]:
    """No text at all asks for the model alone."""
    if isinstance(given, list):
        if not given:
            raise RequestError("input is an empty list; send at least one text")
        return given
    return [given] if given else []


async def _embedded(services: Services, ask: EmbedAsk) -> Embedded:
    if ask.request.texts:
        return await embed(services, ask)
    load_s = 0.0

    def leased(lease: Lease) -> None:
        nonlocal load_s
        load_s = lease.load_s

    await hold(services, Ask(ask.model, None, ask.load, ask.keep_alive_s), leased)
    return Embedded([], 0, load_s)
