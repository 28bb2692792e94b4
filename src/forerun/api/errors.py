"""Errors in the words of the dialect that a path belongs to (08 API-14, OAI-6)."""

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from forerun.base.errors import CancelledError, ForerunError, NotFoundError, internal, one_line
from forerun.base.json_types import JsonObject
from forerun.base.logs import logger
from forerun.store.manifest import encode_json

log = logger(__name__)

OPENAI_PREFIX = "/v1/"


def native_error(error: ForerunError) -> JsonObject:
    """{"error": text}."""
    return {"error": one_line(error)}


def openai_error(error: ForerunError) -> JsonObject:
    """The object that OpenAI's clients turn into an exception."""
    kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
    described: JsonObject = {
        "message": one_line(error),
        "type": kinds.get(error.status, "api_error"),
        "param": None,
        "code": "model_not_found" if isinstance(error, NotFoundError) else None,
    }
    return {"error": described}


def error_response(path: str, error: ForerunError, status: int | None = None) -> Response:
    """`status` where HTTP has a better one than the error itself."""
    body = openai_error(error) if path.startswith(OPENAI_PREFIX) else native_error(error)
    return Response(encode_json(body), status or error.status, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ForerunError), error
    return error_response(request.url.path, error)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), error
    what = f"{request.method} {request.url.path} is not offered here"
    return error_response(request.url.path, ForerunError(what), error.status_code)


async def _broken(request: Request, error: Exception) -> Response:
    log.error("%s failed", request.url.path, exc_info=error)
    return error_response(request.url.path, internal(error))


async def _left(request: Request, _error: Exception) -> Response:
    """The client left while it was sending; nobody reads this."""
    return error_response(request.url.path, CancelledError("the client left"))


HANDLERS: dict[type[Exception] | int, ExceptionHandler] = {
    ForerunError: _refused,
    HTTPException: _no_route,
    ClientDisconnect: _left,
    Exception: _broken,
}
