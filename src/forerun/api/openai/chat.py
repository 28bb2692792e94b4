"""POST /v1/chat/completions (spec 08 OAI-2)."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.answers import Ask
from forerun.api.bodies import read_body
from forerun.api.openai.chat_dialect import ChatDialect
from forerun.api.openai.chat_wire import ChatRequest, wants_usage
from forerun.api.openai.formats import read_format
from forerun.api.openai.messages import to_messages
from forerun.api.openai.sampling import check_single, read_effort, read_sampling
from forerun.api.openai.tools import read_tools
from forerun.api.options import load_options, read_keep_alive
from forerun.api.response import AnswerResponse
from forerun.api.services import Services
from forerun.base.errors import RequestError
from forerun.protocol.requests import CompletionRequest
from forerun.store.names import ModelName


def chat_routes(services: Services) -> list[Route]:
    """The chat endpoint."""

    async def create(request: Request) -> Response:
        asked = await read_body(request, ChatRequest)
        usage = wants_usage(asked.stream_options)
        dialect = ChatDialect(asked.model, include_usage=usage)
        return AnswerResponse(services, read_ask(asked), dialect, stream=bool(asked.stream))

    return [Route("/v1/chat/completions", create, methods=["POST"])]


def read_ask(asked: ChatRequest) -> Ask:
    """What is asked of the model. RequestError naming the field that is wrong or not offered."""
    check_single("n", asked.n)
    if asked.top_logprobs and not asked.logprobs:
        raise RequestError(f"top_logprobs is {asked.top_logprobs}; it takes logprobs true")
    options = read_sampling(
        asked,
        {"max_completion_tokens": asked.max_completion_tokens, "max_tokens": asked.max_tokens},
    )
    request = CompletionRequest(
        messages=to_messages(asked.messages),
        tools=read_tools(asked.tools, asked.tool_choice),
        think=read_effort(asked.reasoning_effort),
        format=read_format(asked.response_format),
        options=dict(options),
        logprobs=bool(asked.logprobs),
        top_logprobs=asked.top_logprobs or 0,
    )
    return Ask(
        ModelName.parse(asked.model),
        request,
        load_options(options),
        read_keep_alive(asked.keep_alive),
    )
