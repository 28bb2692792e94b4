"""An answer as it is sent, over a real scheduler and runner: silence, leaving, stalling, bugs.

E11, E19; 05 HTP-5, DEC-8; 08 SCH-8, API-14. `AnswerResponse` is the same for every dialect: the
native one stands for all.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from fixtures.scripted import SCRIPTED_RUNNER, scripted_store
from forerun.api import sending
from forerun.api.answers import Ask
from forerun.api.metrics import Metrics
from forerun.api.ollama.dialect import GenerateDialect
from forerun.api.response import AnswerResponse, WorkResponse
from forerun.api.services import Services
from forerun.protocol.events import Chunk, Done
from forerun.protocol.requests import CompletionRequest, Message
from forerun.scheduler.scheduler import Lease, Scheduler
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store

MODEL = ModelName.parse("scripted")
LONG = "CHUNK_MS=150 " + "x" * 1600 + " SAY:hello"  # of several chunks
ENDLESS = "TOKEN_MS=5 ENDLESS SAY:hello"
QUIET_S = 0.04

Scenario = Callable[[Services], Coroutine[None, None, None]]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return scripted_store(tmp_path_factory.mktemp("responses"))


@dataclass
class Reader:
    """A client of one answer, which goes away once `leaves` says so of the message it got."""

    leaves: Callable[[dict[str, Any]], bool] = lambda _: False
    messages: list[dict[str, Any]] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def receive(self) -> dict[str, str]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.messages.append(message)
        if self.leaves(message):
            self.gone.set()
            await asyncio.Event().wait()  # nobody takes anything any more

    @property
    def status(self) -> int:
        status: int = self.messages[0]["status"]
        return status

    @property
    def lines(self) -> list[dict[str, Any]]:
        body = b"".join(message.get("body", b"") for message in self.messages)
        return [json.loads(line) for line in body.splitlines()]

    @property
    def text(self) -> str:
        return "".join(line["response"] for line in self.lines)


class Stalled(Reader):
    """Takes the head and nothing more, and does not go away."""

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()


class Broken(GenerateDialect):
    """A bug of ours at the end of an answer."""

    def done(self, done: Done) -> bytes:
        raise ValueError(f"/secret/place {done.reason}")

    def whole(self, chunk: Chunk, done: Done) -> bytes:
        raise ValueError(f"/secret/place {chunk.text} {done.reason}")


class BrokenAtOnce(GenerateDialect):
    """A bug of ours before there is an answer."""

    def leased(self, lease: Lease) -> None:
        raise ValueError(f"/secret/place {lease.load_s}")


def play(settings: Settings, scenario: Scenario) -> None:
    async def playing() -> None:
        store = Store(settings.models)
        scheduler = Scheduler(store, settings, module=SCRIPTED_RUNNER)
        try:
            await scenario(Services(store, scheduler, settings, Metrics()))
        finally:
            await scheduler.close()

    asyncio.run(asyncio.wait_for(playing(), 60))


async def read(
    services: Services,
    prompt: str | None,
    reader: Reader | None = None,
    *,
    stream: bool = True,
    dialect: type[GenerateDialect] = GenerateDialect,
) -> Reader:
    """One answer, read to its end or the reader's."""
    reader = reader or Reader()
    messages = [Message(role="user", content=prompt)]
    request = None if prompt is None else CompletionRequest(messages=messages)
    answer = AnswerResponse(
        services, Ask(MODEL, request), dialect("m", 0.0), stream=stream, quiet_s=QUIET_S
    )
    await answer({}, reader.receive, reader.send)
    return reader


async def nobody_holds(services: Services) -> None:
    """Every lease is over, and the model answers who comes next."""
    assert [each.active for each in await services.scheduler.residents()] in ([], [0])
    assert services.scheduler.waiting == 0
    assert (await read(services, "SAY:next")).text == "next"


def body_with(words: bytes) -> Callable[[dict[str, Any]], bool]:
    return lambda message: words in message.get("body", b"")


def test_silence_is_broken(settings: Settings) -> None:
    """E19: while a model loads, and while its prompt is evaluated, told how far that is."""

    async def scenario(services: Services) -> None:
        loading = await read(services, None)
        assert loading.status == 200
        assert len(loading.lines) > 2
        assert not any("progress" in line for line in loading.lines)
        assert [line["done"] for line in loading.lines[-2:]] == [False, True]

        reader = await read(services, LONG)
        progress = [line["progress"] for line in reader.lines if "progress" in line]
        done = [each["processed"] for each in progress]
        assert len(set(done)) >= 3
        assert done == sorted(done)
        assert {each["total"] for each in progress} == {reader.lines[-1]["prompt_eval_count"]}
        assert reader.text == "hello"
        assert reader.messages[0]["type"] == "http.response.start"
        assert not reader.messages[-1].get("more_body")

    play(settings, scenario)


def test_readers_that_leave(settings: Settings) -> None:
    """E11, 05 HTP-5, 08 SCH-8: while the model loads, in the prompt, in the text, at the end."""

    async def scenario(services: Services) -> None:
        loading = await read(services, "SAY:hello", Reader(body_with(b"done")))
        assert len(loading.lines) == 1
        await nobody_holds(services)
        for prompt, word in (
            (LONG, b"progress"),
            (ENDLESS, b'"response":"h'),
            ("SAY:hello", b"done_reason"),
        ):
            reader = await read(services, prompt, Reader(body_with(word)))
            assert word in reader.messages[-1]["body"]
            await nobody_holds(services)
        gone = Reader()
        gone.gone.set()
        assert (await read(services, ENDLESS, gone, stream=False)).messages == []
        await nobody_holds(services)

    play(settings, scenario)


def test_a_reader_that_takes_nothing(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """05 DEC-8: is waited for, but not for ever; its stream has no end that looks like one."""
    monkeypatch.setattr(sending, "STALL_S", 0.2)

    async def scenario(services: Services) -> None:
        reader = await read(services, ENDLESS, Stalled())
        assert [message["type"] for message in reader.messages] == [
            "http.response.start",
            "http.response.body",
        ]
        assert reader.messages[-1]["more_body"]
        await nobody_holds(services)

    play(settings, scenario)


def test_a_bug_is_an_error_without_its_text(settings: Settings) -> None:
    """08 API-14: a status before the stream began, a line in it; the log has the rest."""
    told = {"error": "internal error: ValueError; the server's log says more"}

    async def scenario(services: Services) -> None:
        streamed = await read(services, "SAY:hello", dialect=Broken)
        assert (streamed.status, streamed.lines[-1]) == (200, told)
        whole = await read(services, "SAY:hello", dialect=Broken, stream=False)
        assert (whole.status, whole.lines) == (500, [told])
        early = await read(services, "SAY:hello", dialect=BrokenAtOnce)
        assert (early.status, early.lines) == (500, [told])
        counts = services.metrics.text().decode()
        assert 'outcome="error_500"} 1.0' in counts  # ours, and not a client that left
        assert 'outcome="cancelled"' not in counts
        await nobody_holds(services)

    play(settings, scenario)


def test_work_is_cancelled_when_its_client_leaves() -> None:
    """05 HTP-5: bodies that are not answers too, such as embeddings."""
    ended: list[str] = []

    async def work() -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")
        return b""

    async def scenario() -> None:
        reader = Reader()
        answer = WorkResponse(work, lambda error: str(error).encode())
        sending = asyncio.ensure_future(answer({}, reader.receive, reader.send))
        await asyncio.sleep(0)
        reader.gone.set()
        await sending
        assert (reader.messages, ended) == ([], ["ended"])

    asyncio.run(asyncio.wait_for(scenario(), 10))
