"""POST /api/generate: one prompt, through the model's template or as it is (08 API-5, API-6).

`context` is a conversation so far as token ids, which every answer that is not raw ends with; the
prompt is its next turn. Not offered, and refused by name: `suffix` and `template`.
"""

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.answers import Ask
from forerun.api.bodies import read_body
from forerun.api.ollama.bodies import AnswerBody, ask_for
from forerun.api.ollama.dialect import GenerateDialect
from forerun.api.ollama.images import refuse_images
from forerun.api.response import AnswerResponse
from forerun.api.services import Services
from forerun.base.errors import RequestError, UnsupportedError
from forerun.base.shown import shown
from forerun.protocol.requests import Message


class GenerateBody(AnswerBody):
    """Empty texts and lists are the same as absent ones."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[str] | None = None
    raw: bool | None = None


def generate_routes(services: Services) -> list[Route]:
    """`/api/generate`."""

    async def generate(request: Request) -> Response:
        arrived = time.monotonic()
        body = await read_body(request, GenerateBody)
        dialect = GenerateDialect(body.model, arrived)
        return AnswerResponse(
            services, generate_ask(body), dialect, stream=body.stream is not False
        )

    return [Route("/api/generate", generate, methods=["POST"])]


def generate_ask(body: GenerateBody) -> Ask:
    """Raises RequestError or UnsupportedError naming the field at fault."""
    _refuse(body)
    if body.raw:
        return ask_for(body, prompt=body.prompt)
    if not body.prompt:
        return ask_for(body)
    messages = [Message(role="user", content=body.prompt)]
    if body.system:
        messages.insert(0, Message(role="system", content=body.system))
    return ask_for(body, messages=messages, context=body.context or [])


def _refuse(body: GenerateBody) -> None:
    refuse_images(body.images, body.model, "images")
    if body.suffix:
        raise RequestError(f"model {shown(body.model)} does not support insert; leave suffix out")
    given = {"template": body.template, "system": body.system, "context": body.context}
    named = [name for name, value in given.items() if value]
    if body.raw and named:
        raise RequestError(f"raw takes the prompt as it is; leave {' and '.join(named)} out")
    if body.template:
        raise UnsupportedError(
            "template is not supported in a request; make a model with it (TEMPLATE in a "
            "Modelfile), or render the prompt and set raw"
        )
