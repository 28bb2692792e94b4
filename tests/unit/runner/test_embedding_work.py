"""Texts that are embedded: in chunks, beside a conversation, given up when nobody waits
(05 THR-2, PRE-1; 08 API-13)."""

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest
from starlette.types import Message

from fixtures.toy import ToyTarget, loaded_toy
from forerun.base.errors import CancelledError
from forerun.contract.batch import Batch
from forerun.contract.model import Caches, Forward
from forerun.engine.embed import embed
from forerun.engine.thread import DeviceThread
from forerun.protocol.codec import decode, encode
from forerun.protocol.events import Embeddings
from forerun.protocol.requests import EmbedRequest
from forerun.runner.app import make_app
from forerun.runner.embedding import EmbeddingWork


class Watched(ToyTarget):
    """Tells which caches each forward was given, and does something in the middle of it."""

    def __init__(self) -> None:
        super().__init__()
        self.caches: list[Caches | None] = []
        self.reached = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def forward(self, batch: Batch, caches: Caches | None) -> Forward:
        self.caches.append(caches)
        self.reached.set()
        assert self.go_on.wait(10)
        return super().forward(batch, caches)


@pytest.fixture
def thread() -> Iterator[DeviceThread]:
    thread = DeviceThread()
    yield thread
    thread.close()


def test_a_long_text_is_evaluated_in_chunks_over_caches_of_its_own():
    """PRE-1, API-13: no forward is longer than a chunk, and a conversation's caches rest."""
    target = Watched()
    loaded = loaded_toy(target, chunk=4)
    embed(loaded, [1] * 9, None, threading.Event())
    assert target.forwards == [(0, 4), (4, 4), (8, 1)]
    own = target.caches[0]
    assert own is not None
    assert all(caches is own for caches in target.caches)
    assert own is not loaded.caches
    assert [cache.offset for cache in loaded.caches if cache is not None] == [0, 0]


def test_a_text_of_one_chunk_needs_no_caches():
    """06 CON-9."""
    target = Watched()
    embed(loaded_toy(target, chunk=4), [1] * 4, None, threading.Event())
    assert (target.forwards, target.caches) == ([(0, 4)], [None])


def test_queued_texts_are_not_begun_once_nobody_waits(thread: DeviceThread):
    """THR-2."""
    target, hold = Watched(), threading.Event()
    before = thread.submit(lambda: hold.wait(10))
    work = EmbeddingWork(thread, loaded_toy(target), [[1, 2], [3]], None)
    work.cancel()
    hold.set()
    assert before.result()
    with pytest.raises(CancelledError):
        work.result()
    assert target.forwards == []


def test_a_text_under_way_ends_with_its_chunk(thread: DeviceThread):
    """THR-2."""
    target = Watched()
    target.go_on.clear()
    work = EmbeddingWork(thread, loaded_toy(target, chunk=4), [[1] * 40, [2]], None)
    assert target.reached.wait(10)
    work.cancel()
    target.go_on.set()
    with pytest.raises(CancelledError):
        work.result()
    assert target.forwards == [(0, 4)]


def test_the_first_failure_ends_the_rest(thread: DeviceThread):
    target = Watched()
    target.fails_at, target.error = 0, RuntimeError("broken")
    with pytest.raises(RuntimeError, match="broken"):
        EmbeddingWork(thread, loaded_toy(target, chunk=1), [[1, 2]], None).result()


class Loading:
    """What the runner's doors stand on, once a model is loaded."""

    state = None

    def __init__(self, work: EmbeddingWork) -> None:
        self.service = self
        self._work = work

    def start_embedding(self, _: EmbedRequest) -> EmbeddingWork:
        return self._work


async def answered(work: EmbeddingWork, after_body: asyncio.Event) -> Sequence[Message]:
    """What the door sends to a client that leaves when `after_body` is set."""
    sent: list[Message] = []
    body = encode(EmbedRequest(texts=["a", "b"]))
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await after_body.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/embed",
        "raw_path": b"/v1/embed",
        "root_path": "",
        "headers": [],
        "query_string": b"",
    }
    await make_app(Loading(work))(scope, receive, send)
    return sent


def test_a_client_that_leaves_gives_up_its_texts(thread: DeviceThread):
    """05 HTP-5, THR-2: while they wait for the device."""
    target, hold = Watched(), threading.Event()
    before = thread.submit(lambda: hold.wait(10))
    work = EmbeddingWork(thread, loaded_toy(target), [[1, 2], [3]], None)

    async def leave() -> Sequence[Message]:
        gone = asyncio.Event()
        gone.set()
        return await answered(work, gone)

    start, *_ = asyncio.run(leave())
    hold.set()
    assert before.result()
    assert start["status"] == CancelledError.status
    assert target.forwards == []


def test_a_client_that_waits_is_answered(thread: DeviceThread):
    work = EmbeddingWork(thread, loaded_toy(Watched()), [[1, 2], [3]], None)

    async def stay() -> Sequence[Message]:
        return await answered(work, asyncio.Event())

    start, body = asyncio.run(stay())
    assert start["status"] == 200
    embeddings = decode(body["body"], Embeddings)
    assert [len(vector) for vector in embeddings.vectors] == [16, 16]
    assert embeddings.prompt_tokens == 3
