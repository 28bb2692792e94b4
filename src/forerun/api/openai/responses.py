"""POST /v1/responses (spec 08 OAI-9). Nothing is stored: each request holds its conversation."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.answers import Ask
from forerun.api.bodies import read_body
from forerun.api.openai.formats import format_of
from forerun.api.openai.responses_dialect import ResponsesDialect
from forerun.api.openai.responses_input import NOTHING_STORED, read_input
from forerun.api.openai.responses_wire import ResponsesRequest, TextFormat, Tool
from forerun.api.openai.sampling import read_effort, read_sampling
from forerun.api.openai.tools import read_tools
from forerun.api.options import load_options, read_keep_alive
from forerun.api.response import AnswerResponse
from forerun.api.services import Services
from forerun.base.errors import RequestError
from forerun.base.shown import shown
from forerun.protocol.requests import CompletionRequest, JsonValue
from forerun.store.names import ModelName

LOGPROBS = "message.output_text.logprobs"


def responses_routes(services: Services) -> list[Route]:
    """The Responses API."""

    async def create(request: Request) -> Response:
        asked = await read_body(request, ResponsesRequest)
        ask = read_ask(asked)
        return AnswerResponse(services, ask, ResponsesDialect(asked), stream=bool(asked.stream))

    return [Route("/v1/responses", create, methods=["POST"])]


def read_ask(asked: ResponsesRequest) -> Ask:
    """What is asked of the model. RequestError naming the field that is wrong or not offered."""
    _refuse_what_is_stored(asked)
    if asked.truncation not in (None, "auto", "disabled"):
        raise RequestError(f"truncation is {shown(asked.truncation)}; it must be auto or disabled")
    options = read_sampling(asked, {"max_output_tokens": asked.max_output_tokens})
    reasoning = asked.reasoning
    request = CompletionRequest(
        messages=read_input(asked.input, asked.instructions),
        tools=read_tools([_tool(tool) for tool in asked.tools or []], asked.tool_choice),
        think=read_effort(reasoning.effort if reasoning else None, "reasoning.effort"),
        format=_format(asked.text.format if asked.text else None),
        options=dict(options),
        logprobs=bool(asked.top_logprobs) or LOGPROBS in (asked.include or []),
        top_logprobs=asked.top_logprobs or 0,
    )
    keep_alive_s = read_keep_alive(asked.keep_alive)
    return Ask(ModelName.parse(asked.model), request, load_options(options), keep_alive_s)


def _refuse_what_is_stored(asked: ResponsesRequest) -> None:
    """An answer without these would be another than the one that was asked for."""
    named = {
        "previous_response_id": asked.previous_response_id,
        "conversation": asked.conversation,
        "prompt": asked.prompt,
    }
    for name, value in named.items():
        if value is not None:
            raise RequestError(f"{name} is given, but {NOTHING_STORED}")
    if asked.background:
        raise RequestError("background is true, but responses are not stored here; use stream")


def _tool(tool: Tool) -> dict[str, JsonValue]:
    """In the form of chat completions, which templates read."""
    if tool.type != "function":
        return {"type": tool.type}
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {
        "type": "function",
        "function": {name: value for name, value in function.items() if value is not None},
    }


def _format(form: TextFormat | None) -> JsonValue:
    if form is None or form.type is None:
        return None
    return format_of(form.type, form.schema, "text.format")
