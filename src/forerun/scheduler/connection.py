"""A client of one runner's socket: protocol messages out, protocol messages back."""

import http.client
import socket
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from forerun.base.errors import ForerunError, RunnerError, error_for
from forerun.protocol.cache import CacheReport
from forerun.protocol.codec import decode, decode_event, encode
from forerun.protocol.events import Chunk, Done, Embeddings, Failed, Progress, Text, Tokens
from forerun.protocol.requests import (
    CompletionRequest,
    DetokenizeRequest,
    EmbedRequest,
    TokenizeRequest,
)
from forerun.protocol.status import RunnerStatus

T = TypeVar("T")

_ANSWER_TIMEOUT_S = 30.0  # for what a runner answers without the device thread, or soon refuses


class Connection:
    """Calls may come from any thread; each opens a connection of its own."""

    def __init__(self, path: Path, last_error: Callable[[], str]) -> None:
        """`last_error` tells what the process behind the socket said last, for messages."""
        self._path = path
        self._last_error = last_error

    def status(self) -> RunnerStatus:
        return self._ask("GET", "/v1/status", None, RunnerStatus, _ANSWER_TIMEOUT_S)

    def watch(self, stall_s: float) -> Iterator[RunnerStatus]:
        """The runner's state now and at every change, until it is ready or failed.

        Raises RunnerError when nothing changes for `stall_s`.
        """
        with closing(self._lines("GET", "/v1/status?watch=1", None, stall_s)) as lines:
            for line in lines:
                yield decode(line, RunnerStatus)

    def complete(
        self, request: CompletionRequest
    ) -> Generator[Progress | Chunk | Done, None, None]:
        """The events of a completion, the last one `Done`. A failure is raised.

        Closing the iterator disconnects, which cancels the request.
        """
        with closing(self._lines("POST", "/v1/completions", request, None)) as lines:
            for line in lines:
                event = decode_event(line)
                if isinstance(event, Failed):
                    raise error_for(event.status, event.message)
                yield event
                if isinstance(event, Done):
                    return
        raise self._gone("the answer broke off")

    def cache(self, *, clear: bool = False) -> CacheReport:
        """What is cached, after a clear if that is asked for; a BusyError where that must wait."""
        method = "DELETE" if clear else "GET"
        return self._ask(method, "/v1/cache", None, CacheReport, _ANSWER_TIMEOUT_S)

    def tokenize(self, request: TokenizeRequest) -> list[int]:
        return self._ask("POST", "/v1/tokenize", request, Tokens, _ANSWER_TIMEOUT_S).tokens

    def detokenize(self, tokens: list[int]) -> str:
        request = DetokenizeRequest(tokens=tokens)
        return self._ask("POST", "/v1/detokenize", request, Text, _ANSWER_TIMEOUT_S).text

    def embed(self, request: EmbedRequest) -> Embeddings:
        return self._ask("POST", "/v1/embed", request, Embeddings, None)

    def _ask(
        self,
        method: str,
        target: str,
        message: msgspec.Struct | None,
        kind: type[T],
        timeout_s: float | None,
    ) -> T:
        with self._exchange(method, target, message, timeout_s) as response:
            return decode(response.read(), kind)

    def _lines(
        self, method: str, target: str, message: msgspec.Struct | None, stall_s: float | None
    ) -> Generator[bytes, None, None]:
        with self._exchange(method, target, message, stall_s) as response:
            while line := response.readline():
                yield line

    @contextmanager
    def _exchange(
        self, method: str, target: str, message: msgspec.Struct | None, timeout_s: float | None
    ) -> Iterator[http.client.HTTPResponse]:
        """One request and its answer's body; an error status is raised as what it stands for."""
        body = None if message is None else encode(message)
        connection = _UnixConnection(self._path, timeout_s)
        response: http.client.HTTPResponse | None = None
        try:
            connection.request(method, target, body)
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise error_for(response.status, response.read().decode(errors="replace"))
            yield response
        except TimeoutError:
            raise RunnerError(f"the runner made no progress for {timeout_s:g} s") from None
        except (OSError, http.client.HTTPException):
            raise self._gone("the runner failed") from None
        finally:
            if response is not None:
                response.close()
            connection.close()

    def _gone(self, what: str) -> ForerunError:
        return RunnerError(f"{what}: {self._last_error()}")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("runner", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
