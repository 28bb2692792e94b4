"""POST /v1/embeddings (spec 08 OAI-8)."""

import struct
from base64 import b64encode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.answers import EmbedAsk, Embedded, embed
from forerun.api.bodies import WireStruct, read_body
from forerun.api.openai import sse
from forerun.api.options import read_keep_alive
from forerun.api.response import WorkResponse
from forerun.api.services import Services
from forerun.base.errors import RequestError
from forerun.base.shown import shown
from forerun.protocol.codec import encode
from forerun.protocol.requests import EmbedRequest
from forerun.store.names import ModelName


class EmbeddingRequest(WireStruct):
    """`keep_alive` is ours."""

    model: str
    input: object
    dimensions: int | None = None
    encoding_format: str | None = None
    keep_alive: object = None


class Embedding(WireStruct):
    """`embedding` is a list of numbers, or base64 of little-endian 32-bit floats."""

    object: str
    index: int
    embedding: list[float] | str


class EmbeddingUsage(WireStruct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(WireStruct):
    object: str
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


def embedding_routes(services: Services) -> list[Route]:
    """The endpoint of embeddings."""

    async def create(request: Request) -> Response:
        asked = await read_body(request, EmbeddingRequest)
        ask = read_ask(asked)

        async def work() -> bytes:
            return encode(_answer(asked, await embed(services, ask)))

        return WorkResponse(work, sse.refusal)

    return [Route("/v1/embeddings", create, methods=["POST"])]


def read_ask(asked: EmbeddingRequest) -> EmbedAsk:
    """What is asked of the model. A text that is too long is refused, since nobody asks for a cut.

    Raises RequestError naming the field that is wrong or not offered.
    """
    if asked.encoding_format not in (None, "float", "base64"):
        raise RequestError(
            f"encoding_format is {shown(asked.encoding_format)}; it must be float or base64"
        )
    request = EmbedRequest(texts=_texts(asked.input), dimensions=asked.dimensions, truncate=False)
    return EmbedAsk(
        ModelName.parse(asked.model), request, keep_alive_s=read_keep_alive(asked.keep_alive)
    )


def _texts(given: object) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
        return texts
    raise RequestError(
        f"input is {shown(given)}; it must be a text or a list of texts: token ids are not taken, "
        "since every model has its own"
    )


def _answer(asked: EmbeddingRequest, embedded: Embedded) -> EmbeddingList:
    packed = asked.encoding_format == "base64"
    return EmbeddingList(
        object="list",
        data=[
            Embedding(
                object="embedding", index=index, embedding=_packed(vector) if packed else vector
            )
            for index, vector in enumerate(embedded.vectors)
        ],
        model=asked.model,
        usage=EmbeddingUsage(
            prompt_tokens=embedded.prompt_tokens, total_tokens=embedded.prompt_tokens
        ),
    )


def _packed(vector: list[float]) -> str:
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
