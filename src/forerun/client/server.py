"""A client of one forerun server: JSON out, JSON or lines of JSON back."""

import http.client
import json
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

from forerun.base.address import Address
from forerun.base.errors import ForerunError, error_for
from forerun.base.json_types import JsonObject, JsonValue

CONNECT_S = 0.3  # a server on this machine answers sooner
GREETING_S = 3.0  # for one far away, and for what a server says of itself, however busy it is
UNAUTHORIZED = 401


class NoServerError(ForerunError):
    """No forerun server answers at the address, or it is gone."""


class ServerClient:
    """Each call opens a connection of its own; leaving a stream closes it, which cancels."""

    def __init__(self, address: Address, api_key: str | None = None) -> None:
        self.address = address
        self._headers = {"content-type": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"

    def version(self) -> str:
        """The version of the forerun server there. NoServerError if there is none."""
        with self._exchange("GET", "/api/version", None, GREETING_S) as response:
            found = _decoded(response.read())
        version = found.get("forerun") if isinstance(found, dict) else None
        if not isinstance(version, str):
            raise NoServerError(f"what answers at {self.address} is no forerun server")
        return version

    def loaded(self) -> list[JsonObject]:
        """What it says of each model that it has loaded."""
        models = self.get("/api/ps").get("models")
        if not isinstance(models, list):
            return []
        return [each for each in models if isinstance(each, dict)]

    def drafters(self, name: str) -> list[str]:
        """What drafts for a model that it has loaded; nothing for another one."""
        named = [each.get("drafters") for each in self.loaded() if each.get("name") == name]
        return [str(each) for found in named if isinstance(found, list) for each in found]

    def get(self, path: str) -> JsonObject:
        with self._exchange("GET", path, None, None) as response:
            return _object(response.read())

    def post(self, path: str, body: JsonObject) -> JsonObject:
        with self._exchange("POST", path, body, None) as response:
            return _object(response.read())

    def stream(self, path: str, body: JsonObject) -> Generator[JsonObject, None, None]:
        """The answer's lines as they come; one that is an error is raised. Closing cancels."""
        with self._exchange("POST", path, body, None) as response:
            while line := response.readline():
                found = _object(line)
                if isinstance(text := found.get("error"), str):
                    raise ForerunError(text)
                yield found

    @contextmanager
    def _exchange(
        self, method: str, path: str, body: JsonObject | None, answer_s: float | None
    ) -> Iterator[http.client.HTTPResponse]:
        """One request and its answer's body; an error status is raised as what it stands for."""
        data = None if body is None else json.dumps(body).encode()
        address = self.address.contact
        connect_s = CONNECT_S if address.is_loopback else GREETING_S
        connection = http.client.HTTPConnection(address.host, address.port, timeout=connect_s)
        with closing(connection):
            try:
                connection.connect()
            except OSError as error:
                reason = error.strerror or str(error)
                raise NoServerError(
                    f"no server answers at {self.address}: {reason}; `forerun serve` starts one"
                ) from None
            try:
                connection.sock.settimeout(answer_s)
                connection.request(method, path, data, self._headers)
                with closing(connection.getresponse()) as response:
                    if response.status >= http.client.BAD_REQUEST:
                        raise _error(response.status, response.read(), self.address)
                    yield response
            except TimeoutError:
                raise NoServerError(
                    f"what listens at {self.address} does not answer in {GREETING_S:g} s"
                ) from None
            except (OSError, http.client.IncompleteRead):
                raise NoServerError(f"the server at {self.address} broke off its answer") from None
            except http.client.HTTPException:
                raise NoServerError(f"what listens at {self.address} is no server") from None


def _error(status: int, body: bytes, address: Address) -> ForerunError:
    if status == UNAUTHORIZED:
        return ForerunError(f"the server at {address} needs its key; set FORERUN_API_KEY to it")
    found = _decoded(body)
    text = found.get("error") if isinstance(found, dict) else None
    if not isinstance(text, str):
        return NoServerError(f"what answers at {address} is no forerun server: HTTP {status}")
    return error_for(status, text)


def _object(data: bytes) -> JsonObject:
    found = _decoded(data)
    if not isinstance(found, dict):
        raise NoServerError("what answers is no forerun server: it sent no JSON object")
    return found


def _decoded(data: bytes) -> JsonValue:
    """None where it is no JSON."""
    try:
        found: JsonValue = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found
