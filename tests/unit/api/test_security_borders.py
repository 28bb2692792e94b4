"""What a bug of ours and a dawdling client meet at the server's outermost parts."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Message, Scope

from forerun.api import connections
from forerun.api.app import make_app
from forerun.api.connections import BoundedConnection
from forerun.api.metrics import Metrics
from forerun.api.ollama import changes
from forerun.api.services import Services
from forerun.protocol.imports import ImportStatus, PullRequest
from forerun.scheduler.scheduler import Scheduler
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store

LATE_S = 0.2  # into a connection's life: each answer gives it the whole time again


class BrokenScheduler(Scheduler):
    async def residents(self):
        raise FileNotFoundError("/home/somebody/secret")


async def get(app, path: str) -> list[Message]:
    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "headers": [(b"host", b"localhost")],
        "query_string": b"",
        "http_version": "1.1",
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def test_a_bug_is_logged_with_its_trace_and_told_without_its_text(tmp_path: Path, caplog) -> None:
    """08 API-14: nothing of this machine is in an answer."""
    settings = Settings.from_environment({"FORERUN_MODELS": str(tmp_path)})

    async def ask() -> list[Message]:
        store = Store(settings.models)
        services = Services(store, BrokenScheduler(store, settings), settings, Metrics())
        return await get(make_app(services), "/metrics")

    start, body = asyncio.run(ask())
    assert start["status"] == 500
    assert b"internal error: FileNotFoundError" in body["body"]
    assert b"somebody" not in body["body"]
    assert [record for record in caplog.records if record.exc_info]


def test_a_bug_in_an_import_is_logged_as_its_failure(tmp_path: Path, caplog, monkeypatch) -> None:
    """08 API-3: not as a client that left."""

    async def broken(*_: object) -> AsyncGenerator[ImportStatus, None]:
        yield ImportStatus(status="begun")
        raise KeyError("/home/somebody/secret")

    monkeypatch.setattr(changes, "follow_import", broken)
    caplog.set_level("INFO")
    settings = Settings.from_environment({"FORERUN_MODELS": str(tmp_path)})

    async def pull() -> None:
        store = Store(settings.models)
        services = Services(store, Scheduler(store, settings), settings, Metrics())
        async for _ in changes.imported(services, ModelName.parse("a"), PullRequest(name="a")):
            pass

    with pytest.raises(KeyError):
        asyncio.run(pull())
    (record,) = [each for each in caplog.records if each.name.endswith("changes")]
    assert record.getMessage() == "import failed"
    assert record.fields["error"] == "internal error: KeyError; the server's log says more"


async def served(sent: bytes, more: bytes) -> tuple[bytes, float]:
    """What a connection is answered, and how long it lived; `more` comes after the answer."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        PlainTextResponse("hello"), http=BoundedConnection, lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    running = asyncio.create_task(server._serve([listener]))
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    started = loop.time()
    await asyncio.sleep(LATE_S)
    writer.write(sent)
    if more:
        await reader.readuntil(b"hello")
        writer.write(more)
    answer = await reader.read()
    lived = loop.time() - started
    writer.close()
    server.should_exit = True
    await running
    return answer, lived


@pytest.mark.parametrize(
    ("sent", "more"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx-slow: ", b""),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET / HTTP/1.1\r\nhos"),
        (b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n", b"refused"),
    ],
    ids=["nothing", "half a head", "half a second head", "a body that nobody reads"],
)
def test_a_connection_that_brings_no_whole_head_is_closed(monkeypatch, sent, more) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    answer, lived = asyncio.run(served(sent, more))
    assert answer == b""
    assert (
        0.3 + (LATE_S if more else 0) - 0.05 < lived < 3
    )  # uvicorn's own limit, for what is idle, is 5 s


def test_a_body_that_breaks_after_its_answer_closes_without_a_trace(caplog) -> None:
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    answer, _ = asyncio.run(served(head, b"no chunk\r\n"))
    assert answer == b""
    assert [record for record in caplog.records if record.exc_info] == []


def test_a_client_that_reads_nothing_of_an_answer_is_cut_off(monkeypatch) -> None:
    """E11: it would hold its place and the answer's bytes for ever."""
    monkeypatch.setattr(connections, "HEAD_S", 0.2)
    monkeypatch.setattr(connections, "UNREAD_S", 0.3)

    async def connections_left() -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        app = PlainTextResponse(b"x" * 20_000_000)
        config = uvicorn.Config(app, http=BoundedConnection, lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        running = asyncio.create_task(server._serve([listener]))
        with socket.create_connection(listener.getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            while not server.server_state.connections:
                await asyncio.sleep(0.01)
            await asyncio.sleep(2)
            left = len(server.server_state.connections)
        server.should_exit = True
        await running
        return left

    assert asyncio.run(connections_left()) == 0
