"""Errors in the words of the dialect that a path belongs to (08 API-14, OAI-6)."""

from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ExceptionHandler

from forerun.base.errors import (
    CancelledError,
    ForerunError,
    NotFoundError,
    UnsupportedError,
    one_line,
)
from forerun.base.json_types import JsonObject
from forerun.base.logs import event, logger
from forerun.base.shown import shown
from forerun.store.manifest import encode_json

log = logger(__name__)

OPENAI_PREFIX = "/v1/"
LOGGED_PATH = 200  # characters of a path that somebody made up
NO_RETRY = {"x-should-retry": "false"}  # OpenAI's clients try again after a 501 unless told so

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "invalid_request_error",
}


def native_error(error: ForerunError) -> JsonObject:
    """{"error": text}."""
    return {"error": one_line(error)}


def openai_error(error: ForerunError, status: int | None = None) -> JsonObject:
    """The object that OpenAI's clients turn into an exception."""
    described: JsonObject = {
        "message": one_line(error),
        "type": _OPENAI_TYPES.get(status or error.status, "api_error"),
        "param": None,
        "code": "model_not_found" if isinstance(error, NotFoundError) else None,
    }
    return {"error": described}


def error_response(
    path: str,
    error: ForerunError,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """`status` where HTTP has a better one than the error itself. Told in the log."""
    told = status or error.status
    openai = path.startswith(OPENAI_PREFIX)
    body = openai_error(error, told) if openai else native_error(error)
    event(log, "refused", path=path[:LOGGED_PATH], status=told, error=one_line(error))
    hint = NO_RETRY if told == UnsupportedError.status else {}
    return Response(encode_json(body), told, {**hint, **(headers or {})}, "application/json")


def unexpected(error: BaseException) -> ForerunError:
    """What a caller is told of a bug of ours, whose text may name files of this machine."""
    return ForerunError(f"internal error: {type(error).__name__}; the server's log says more")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ForerunError), error
    return error_response(request.url.path, error)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), error
    path = request.url.path
    allowed = (error.headers or {}).get("Allow")
    offered = f"; it takes {allowed}" if allowed else ""
    refusal = ForerunError(f"{request.method} {shown(path)} is not offered here{offered}")
    return error_response(path, refusal, error.status_code, error.headers)


async def _left(request: Request, _error: Exception) -> Response:
    """The client left while it was sending; nobody reads this."""
    return error_response(request.url.path, CancelledError("the client left"))


HANDLERS: dict[type[Exception] | int, ExceptionHandler] = {
    ForerunError: _refused,
    HTTPException: _no_route,
    ClientDisconnect: _left,
}
