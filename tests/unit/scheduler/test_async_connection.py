"""What a runner can do to the server's client: refuse, break off, talk nonsense, hang (08 RUN-9).

The other side here only replays bytes; what a real runner says is tested end to end.
"""

import asyncio
import errno
from contextlib import asynccontextmanager, suppress

import pytest

from forerun.base.errors import (
    BusyError,
    CancelledError,
    ForerunError,
    NotFoundError,
    RequestError,
    RunnerError,
    UnsupportedError,
)
from forerun.protocol.events import Chunk, Done, Embeddings
from forerun.protocol.requests import CompletionRequest, EmbedRequest, TokenizeRequest
from forerun.scheduler import async_connection
from forerun.scheduler.async_connection import AsyncConnection

OK = b"HTTP/1.0 200 OK\r\ncontent-type: application/x-ndjson\r\n\r\n"
CHUNK = b'{"type":"chunk","text":"a"}\n'
DONE = (
    b'{"type":"done","reason":"stop","figures":{"prompt_tokens":1,"cached_tokens":0,'
    b'"generated_tokens":1,"prompt_seconds":0,"generation_seconds":0}}\n'
)
REQUEST = CompletionRequest(prompt="a")


class Runner:
    """A socket that answers with given bytes and then closes, or waits for its client to leave."""

    def __init__(self, data, *, hang):
        self.asked = b""
        self.left = asyncio.Event()
        self._data = data
        self._hang = hang

    async def answer(self, reader, writer):
        with suppress(ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            self.asked = head + await reader.readexactly(length)
            writer.write(self._data)
            await writer.drain()
            if not self._hang:
                writer.write_eof()
            await reader.read()  # until the client leaves
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.left.set()


@asynccontextmanager
async def replay(folder, data, *, hang=False):
    runner = Runner(data, hang=hang)
    path = folder / "socket"
    server = await asyncio.start_unix_server(runner.answer, str(path))

    async def failure():
        return RunnerError("the runner failed: out of memory")

    async with server, asyncio.timeout(20):
        try:
            yield AsyncConnection(path, failure), runner
        finally:
            await runner.left.wait()  # whatever happens, the client leaves


def completed(folder, data):
    async def collect():
        async with replay(folder, data) as (connection, _):
            return [event async for event in connection.complete(REQUEST)]

    return asyncio.run(collect())


def asked(folder, data, ask):
    async def once():
        async with replay(folder, data) as (connection, _):
            return await ask(connection)

    return asyncio.run(once())


def test_events_until_done(tmp_path):
    events = completed(tmp_path, OK + CHUNK + CHUNK + DONE + b"what follows is not read")
    assert [type(event) for event in events] == [Chunk, Chunk, Done]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.0",
        b"HTTP/1.0 200 OK\r\n",
        b"\r\n\r\n",
        b"HTTP/1.0 OK 200\r\n\r\n",
        OK,
        OK + CHUNK,
        OK + CHUNK[:10],
        OK + CHUNK + DONE[:-1],
        OK + b"no JSON\n" + DONE,
        OK + b"\xff\xfe\n" + DONE,
        OK + b'{"type":"chunk","txt":"a"}\n' + DONE,
    ],
)
def test_an_answer_that_breaks_off_is_one_error_with_the_reason(tmp_path, data):
    """RUN-9: and never a mistake of whoever asked."""
    with pytest.raises(RunnerError, match=r"^the runner failed: out of memory$"):
        completed(tmp_path, data)


@pytest.mark.parametrize("data", [b"", OK, OK + b'{"vectors":[[1.0', OK + b"[]"])
def test_half_an_answer_is_the_same_error(tmp_path, data):
    with pytest.raises(RunnerError, match=r"^the runner failed: out of memory$"):
        asked(tmp_path, data, lambda c: c.embed(EmbedRequest(texts=["a"])))


@pytest.mark.parametrize(("clear", "method"), [(False, b"GET"), (True, b"DELETE")])
def test_a_cache_is_asked_for_by_what_is_done_to_it(tmp_path, clear, method):
    report = (
        b'{"context":8,"budget":1,"snapshots":0,"live_tokens":0,"live_bytes":0,"freed_bytes":2,'
        b'"as_of_seconds":1.5,"nodes":[]}'
    )

    async def once():
        async with replay(tmp_path, OK + report) as (connection, runner):
            return await connection.cache(clear=clear), runner.asked

    found, said = asyncio.run(once())
    assert (found.freed_bytes, found.as_of_seconds) == (2, 1.5)
    assert said.startswith(method + b" /v1/cache HTTP/1.0")


def test_a_cache_that_does_not_come_is_given_up(tmp_path):
    """A stopped process holds up nobody for ever."""

    async def once():
        async with replay(tmp_path, b"", hang=True) as (connection, _):
            await connection.cache(timeout_s=0.05)

    with pytest.raises(RunnerError, match=r"did not answer in 0\.05 s"):
        asyncio.run(once())


def test_what_came_before_the_break_is_handed_out(tmp_path):
    async def collect():
        async with replay(tmp_path, OK + CHUNK + CHUNK[:5]) as (connection, _):
            events = connection.complete(REQUEST)
            assert await anext(events) == Chunk(text="a")
            with pytest.raises(RunnerError):
                await anext(events)

    asyncio.run(collect())


def test_a_line_without_an_end_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(async_connection, "MAX_LINE", 1000)
    with pytest.raises(RunnerError, match="the runner failed"):
        completed(tmp_path, OK + b'{"type":"chunk","text":"' + b"x" * 10_000 + b'"}\n' + DONE)


def test_a_line_of_many_megabytes_is_read(tmp_path):
    """Log-probabilities of a whole answer may come in one event."""
    text = "x" * 8_000_000
    line = b'{"type":"chunk","text":"' + text.encode() + b'"}\n'
    chunk, _ = completed(tmp_path, OK + line + DONE)
    assert chunk.text == text


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, RequestError),
        (404, NotFoundError),
        (499, CancelledError),
        (500, ForerunError),
        (501, UnsupportedError),
        (503, BusyError),
    ],
)
def test_an_error_status_is_raised_as_what_it_stands_for(tmp_path, status, error):
    data = b"HTTP/1.1 %d No\r\n\r\nbecause of that" % status
    for ask in (
        lambda connection: anext(connection.complete(REQUEST)),
        lambda connection: connection.tokenize(TokenizeRequest(text="a")),
    ):
        with pytest.raises(error, match=r"^because of that$"):
            asked(tmp_path, data, ask)


def test_a_failure_after_the_start_is_raised_as_what_it_is(tmp_path):
    failed = b'{"type":"failed","status":400,"message":"no token is allowed here"}\n'

    async def collect():
        async with replay(tmp_path, OK + CHUNK + failed) as (connection, _):
            events = connection.complete(REQUEST)
            await anext(events)
            with pytest.raises(RequestError, match="no token is allowed here"):
                await anext(events)

    asyncio.run(collect())


def test_closing_the_answer_disconnects(tmp_path):
    """HTP-5 from the other side."""

    async def leave():
        async with replay(tmp_path, OK + CHUNK, hang=True) as (connection, runner):
            events = connection.complete(REQUEST)
            await anext(events)
            await events.aclose()
            assert await runner.left.wait()

    asyncio.run(leave())


@pytest.mark.parametrize("data", [b"", OK])
def test_cancelling_a_call_disconnects(tmp_path, data):
    """Before the head of an answer has come, and in its middle."""

    async def cancel():
        async with replay(tmp_path, data, hang=True) as (connection, runner):
            call = asyncio.ensure_future(connection.embed(EmbedRequest(texts=["a"])))
            while not runner.asked:
                await asyncio.sleep(0.001)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await runner.left.wait()

    asyncio.run(cancel())


def test_a_status_that_does_not_come_is_given_up(tmp_path):
    """RUN-5."""

    async def ask():
        async with replay(tmp_path, b"", hang=True) as (connection, _):
            with pytest.raises(RunnerError, match=r"did not answer in 0\.05 s"):
                await connection.status(0.05)

    asyncio.run(ask())


def test_each_question_has_its_door(tmp_path):
    """HTP-2, HTP-4."""
    for data, ask, line, answer in [
        (b'{"state":"ready"}', lambda c: c.status(), "GET /v1/status", None),
        (b'{"tokens":[1]}', lambda c: c.tokenize(TokenizeRequest(text="é")), "POST /v1/tok", [1]),
        (b'{"text":"b"}', lambda c: c.detokenize([1]), "POST /v1/detokenize", "b"),
        (
            b'{"vectors":[[1.0]],"prompt_tokens":1}',
            lambda c: c.embed(EmbedRequest(texts=["a"])),
            "POST /v1/embed",
            Embeddings(vectors=[[1.0]], prompt_tokens=1),
        ),
    ]:

        async def once(data=data, ask=ask):
            async with replay(tmp_path, OK + data) as (connection, runner):
                return await ask(connection), runner.asked.decode()

        found, sent = asyncio.run(once())
        assert sent.startswith(line)
        assert answer is None or found == answer


def test_a_server_without_room_for_a_connection_is_busy(monkeypatch, tmp_path):
    """That is no failure of the runner, which goes on with its other requests."""

    async def refuse(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "open_unix_connection", refuse)
    with pytest.raises(BusyError, match="ulimit"):
        asyncio.run(AsyncConnection(tmp_path, None).tokenize(TokenizeRequest(text="a")))


def test_a_socket_that_is_not_there_is_an_error(tmp_path):
    async def failure():
        return RunnerError("the runner failed: it crashed")

    with pytest.raises(RunnerError, match=r"^the runner failed: it crashed$"):
        asyncio.run(AsyncConnection(tmp_path / "absent", failure).tokenize(REQUEST))
