"""POST /api/chat: the next turn of a conversation (08 API-7)."""

import time

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.answers import Ask
from forerun.api.bodies import read_body
from forerun.api.ollama.bodies import AnswerBody, ask_for
from forerun.api.ollama.dialect import ChatDialect
from forerun.api.ollama.messages import WireMessage, read_messages
from forerun.api.response import AnswerResponse
from forerun.api.services import Services
from forerun.protocol.requests import JsonValue


class ChatBody(AnswerBody):
    """Without messages the model is only loaded, or unloaded."""

    messages: list[WireMessage] | None = None
    tools: list[dict[str, JsonValue]] | None = None


def chat_routes(services: Services) -> list[Route]:
    """`/api/chat`."""

    async def chat(request: Request) -> Response:
        arrived = time.monotonic()
        body = await read_body(request, ChatBody)
        dialect = ChatDialect(body.model, arrived)
        return AnswerResponse(services, chat_ask(body), dialect, stream=body.stream is not False)

    return [Route("/api/chat", chat, methods=["POST"])]


def chat_ask(body: ChatBody) -> Ask:
    """Raises RequestError naming the field at fault."""
    messages = read_messages(body.messages or (), body.model)
    return ask_for(body, messages=messages, tools=body.tools)
