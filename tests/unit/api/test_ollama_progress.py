"""The answer of a pull or create, line by line (08 API-3, API-4, API-14; E19)."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from starlette.types import Message

from forerun.api import sending
from forerun.api.ollama.progress import ProgressResponse, Work, progress_line
from forerun.base.errors import NotFoundError
from forerun.protocol.imports import ImportStatus

COUNTED = ImportStatus(status="fetching", completed=1, total=2)


class Wire:
    """What a client sends and gets; it is there until `leave`."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.leave = asyncio.Event()
        self.written = asyncio.Event()

    async def receive(self) -> Message:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if message.get("body"):
            self.written.set()

    @property
    def status(self) -> int:
        status: int = self.sent[0]["status"]
        return status

    @property
    def lines(self) -> list[dict[str, Any]]:
        body = b"".join(message.get("body", b"") for message in self.sent)
        return [json.loads(line) for line in body.splitlines()]


def work_of(*steps: ImportStatus | Exception | asyncio.Event) -> Work:
    """Steps to report; an exception is raised, an event is waited for."""

    async def work() -> AsyncGenerator[ImportStatus, None]:
        for step in steps:
            if isinstance(step, asyncio.Event):
                await step.wait()
            elif isinstance(step, Exception):
                raise step
            else:
                yield step

    return work


def answer(work: Callable[[], Work], *, stream: bool = True, quiet_s: float = 60.0) -> Wire:
    async def run() -> Wire:
        wire = Wire()
        response = ProgressResponse(work(), stream=stream, quiet_s=quiet_s)
        await response({"type": "http"}, wire.receive, wire.send)
        return wire

    return asyncio.run(run())


def test_texts_are_held_until_bytes_are_counted() -> None:
    """08 API-3: then all lines come in order, the last one success."""
    text = ImportStatus(status="looking")
    wire = answer(lambda: work_of(text, COUNTED, text))
    assert wire.status == 200
    assert [line["status"] for line in wire.lines] == ["looking", "fetching", "looking", "success"]
    assert [line.get("total") for line in wire.lines] == [None, 2, None, None]


@pytest.mark.parametrize("stream", [True, False])
def test_an_error_before_the_first_bytes_has_its_status(stream: bool) -> None:
    """08 API-14."""
    text = ImportStatus(status="looking")
    wire = answer(lambda: work_of(text, NotFoundError("nothing")), stream=stream)
    assert (wire.status, wire.lines) == (404, [{"error": "nothing"}])


def test_an_error_after_the_first_bytes_is_the_last_line() -> None:
    """08 API-14."""
    wire = answer(lambda: work_of(COUNTED, NotFoundError("lost")))
    assert wire.status == 200
    assert wire.lines[1:] == [{"error": "lost"}]


def test_without_a_stream_there_is_one_word() -> None:
    """08 API-15."""
    wire = answer(lambda: work_of(COUNTED), stream=False)
    assert (wire.status, wire.lines) == (200, [{"status": "success"}])


def test_silence_is_broken_by_the_last_line() -> None:
    """E19: the head goes out after a silence, and what is going on is said again after the next."""

    async def run() -> Wire:
        wire, more = Wire(), asyncio.Event()
        work = work_of(ImportStatus(status="looking"), more)
        response = ProgressResponse(work, stream=True, quiet_s=0.01)
        running = asyncio.ensure_future(response({"type": "http"}, wire.receive, wire.send))
        while len(wire.lines) < 3:
            wire.written.clear()
            await wire.written.wait()
        more.set()
        await running
        return wire

    wire = asyncio.run(run())
    said = [line["status"] for line in wire.lines]
    assert set(said[:-1]) == {"looking"}
    assert said[-1] == "success"


def test_the_work_is_closed_when_the_client_leaves() -> None:
    """08 API-4: whether it has had an answer or not."""

    async def run() -> bool:
        wire, begun, closed = Wire(), asyncio.Event(), asyncio.Event()

        async def work() -> AsyncGenerator[ImportStatus, None]:
            try:
                begun.set()
                await asyncio.Event().wait()
                yield COUNTED
            finally:
                closed.set()

        response = ProgressResponse(work, stream=True)
        running = asyncio.ensure_future(response({"type": "http"}, wire.receive, wire.send))
        await begun.wait()
        wire.leave.set()
        await running
        return closed.is_set() and wire.sent == []

    assert asyncio.run(run())


def test_each_counted_step_has_a_digest() -> None:
    """08 API-3: Ollama's clients draw one bar a digest; the importer's own is passed on."""
    first, again = progress_line(COUNTED), progress_line(COUNTED)
    assert first.digest is not None
    assert first.digest == again.digest
    assert len(first.digest) == len("sha256:") + 64
    other = ImportStatus(status="converting", completed=1, total=2)
    assert progress_line(other).digest != first.digest
    assert progress_line(ImportStatus(status="text")).digest is None
    own = ImportStatus(status="x", digest="sha256:own", total=1)
    assert progress_line(own).digest == "sha256:own"


def test_a_reader_that_takes_nothing_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """05 DEC-8: what works for it is ended."""
    monkeypatch.setattr(sending, "STALL_S", 0.05)
    closed = asyncio.Event()

    async def work() -> AsyncGenerator[ImportStatus, None]:
        try:
            while True:
                yield COUNTED
        finally:
            closed.set()

    async def story() -> None:
        wire = Wire()

        async def send(message: Message) -> None:
            await wire.send(message)
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        async with asyncio.timeout(20):
            await ProgressResponse(work, stream=True)({"type": "http"}, wire.receive, send)
        assert closed.is_set()
        assert [message["type"] for message in wire.sent] == [
            "http.response.start",
            "http.response.body",
        ]

    asyncio.run(story())
