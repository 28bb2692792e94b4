"""POST /v1/completions: a raw prompt is continued, without a template (spec 08 OAI-2)."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from forerun.api.answers import Ask
from forerun.api.bodies import read_body
from forerun.api.openai.chat_wire import wants_usage
from forerun.api.openai.completions_dialect import TextDialect
from forerun.api.openai.completions_wire import TextRequest
from forerun.api.openai.sampling import check_single, read_sampling
from forerun.api.options import load_options, read_keep_alive
from forerun.api.response import AnswerResponse
from forerun.api.services import Services
from forerun.base.errors import RequestError
from forerun.base.shown import shown
from forerun.protocol.requests import CompletionRequest
from forerun.store.names import ModelName


def completion_routes(services: Services) -> list[Route]:
    """The endpoint of raw prompts."""

    async def create(request: Request) -> Response:
        asked = await read_body(request, TextRequest)
        usage = wants_usage(asked.stream_options)
        dialect = TextDialect(asked.model, include_usage=usage)
        return AnswerResponse(services, read_ask(asked), dialect, stream=bool(asked.stream))

    return [Route("/v1/completions", create, methods=["POST"])]


def read_ask(asked: TextRequest) -> Ask:
    """What is asked of the model. RequestError naming the field that is wrong or not offered.

    An empty text only loads the model, as it does at the native door: there is nothing to continue
    (E15).
    """
    check_single("n", asked.n)
    check_single("best_of", asked.best_of)
    if asked.suffix:
        raise RequestError("suffix is not offered; leave it out")
    if asked.echo:
        raise RequestError("echo is not offered; put the prompt before the answer yourself")
    options = read_sampling(asked, {"max_tokens": asked.max_tokens})
    request = _prompt(asked.prompt)
    if request is not None:
        request.options = dict(options)
        request.logprobs = asked.logprobs is not None
        request.top_logprobs = asked.logprobs or 0
    return Ask(
        ModelName.parse(asked.model),
        request,
        load_options(options),
        read_keep_alive(asked.keep_alive),
    )


def _prompt(given: object) -> CompletionRequest | None:
    """One prompt, as text or as token ids, alone or in a list; None for an empty text."""
    if isinstance(given, list) and given and not isinstance(given[0], int):
        if len(given) > 1:
            raise RequestError(f"prompt holds {len(given)} prompts; send one in each request")
        given = given[0]
    if isinstance(given, str):
        return CompletionRequest(prompt=given) if given else None
    if isinstance(given, list) and given and all(type(token) is int for token in given):
        return CompletionRequest(prompt_ids=given)
    raise RequestError(f"prompt is {shown(given)}; it must be a text or a list of token ids")
