"""The server's client of one runner's socket: many requests at once on one event loop.

Requests are HTTP/1.0, so that a body ends where the connection does and nothing need be unpacked;
whether an answer is whole is told by its last event and not by HTTP.
"""

import asyncio
import errno
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from forerun.base.errors import BusyError, ForerunError, RequestError, RunnerError, error_for
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

OK = 200
MAX_LINE = 64 << 20  # of an answer: an event with its log-probabilities
FIGURES_S = 1.0  # longest wait for fresh figures (08 RUN-5)
CACHE_S = 15.0  # for what a runner itself answers within 10

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


class AsyncConnection:
    """Each call opens a connection of its own; cancelling the call closes it."""

    def __init__(self, path: Path, failure: Callable[[], Awaitable[ForerunError]]) -> None:
        """`failure` is what a caller is told whose answer broke off."""
        self._path = path
        self._failure = failure

    async def complete(
        self, request: CompletionRequest
    ) -> AsyncGenerator[Progress | Chunk | Done, None]:
        """The events of a completion, the last one `Done`. A failure is raised.

        Closing the generator disconnects, which cancels the request.
        """
        try:
            async with self._exchange("POST", "/v1/completions", request) as reader:
                while line := await _line(reader):
                    event = _understood(decode_event, line)
                    if isinstance(event, Failed):
                        raise error_for(event.status, event.message)
                    yield event
                    if isinstance(event, Done):
                        return
        except OSError:
            pass
        raise await self._failure()

    async def status(self, timeout_s: float = FIGURES_S) -> RunnerStatus:
        """Raises RunnerError if it takes longer than `timeout_s`."""
        return await _in_time(self._ask("GET", "/v1/status", None, RunnerStatus), timeout_s)

    async def cache(self, *, clear: bool = False, timeout_s: float = CACHE_S) -> CacheReport:
        """What is cached, after a clear if that is asked for; a BusyError where that must wait."""
        method = "DELETE" if clear else "GET"
        return await _in_time(self._ask(method, "/v1/cache", None, CacheReport), timeout_s)

    async def tokenize(self, request: TokenizeRequest) -> list[int]:
        return (await self._ask("POST", "/v1/tokenize", request, Tokens)).tokens

    async def detokenize(self, tokens: list[int]) -> str:
        request = DetokenizeRequest(tokens=tokens)
        return (await self._ask("POST", "/v1/detokenize", request, Text)).text

    async def embed(self, request: EmbedRequest) -> Embeddings:
        return await self._ask("POST", "/v1/embed", request, Embeddings)

    async def _ask(
        self, method: str, target: str, message: msgspec.Struct | None, kind: type[T]
    ) -> T:
        try:
            async with self._exchange(method, target, message) as reader:
                return _understood(lambda body: decode(body, kind), await reader.read())
        except OSError:
            pass
        raise await self._failure()

    @asynccontextmanager
    async def _exchange(
        self, method: str, target: str, message: msgspec.Struct | None
    ) -> AsyncIterator[asyncio.StreamReader]:
        """One request; its answer's body is left to read. An error status is raised."""
        body = b"" if message is None else encode(message)
        head = f"{method} {target} HTTP/1.0\r\nhost: runner\r\ncontent-length: {len(body)}\r\n\r\n"
        reader, writer = await _connected(self._path)
        try:
            writer.write(head.encode() + body)
            with suppress(ConnectionError):  # it may answer before it has read everything
                await writer.drain()
            status = await _status(reader)
            if status != OK:
                raise error_for(status, (await reader.read()).decode(errors="replace"))
            yield reader
        finally:
            writer.close()


async def _in_time(answer: Awaitable[T], timeout_s: float) -> T:
    try:
        async with asyncio.timeout(timeout_s):
            return await answer
    except TimeoutError:
        raise RunnerError(f"the runner did not answer in {timeout_s:g} s") from None


async def _connected(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        return await asyncio.open_unix_connection(str(path), limit=MAX_LINE)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
    raise BusyError(
        "too many connections are open at once; try again later, or raise the limit of open files "
        "(ulimit -n)"
    )


async def _status(reader: asyncio.StreamReader) -> int:
    """The status of an answer, whose head is read. ConnectionError if there is none."""
    first = await _line(reader)
    while (await _line(reader)).strip():
        pass
    found = _STATUS_LINE.match(first)
    if found is None:
        raise ConnectionError("no answer")
    return int(found[1])


async def _line(reader: asyncio.StreamReader) -> bytes:
    """A whole line, b"" at the end. ConnectionError if it breaks off or does not end."""
    try:
        line = await reader.readline()
    except ValueError:  # what asyncio raises at its limit
        raise ConnectionError("a line is too long") from None
    if line and not line.endswith(b"\n"):
        raise ConnectionError("a line breaks off")
    return line


def _understood(read: Callable[[bytes], T], data: bytes) -> T:
    """A message of the runner. What is none is no mistake of whoever asked: ConnectionError."""
    try:
        return read(data)
    except RequestError:
        raise ConnectionError("an answer is not understood") from None
