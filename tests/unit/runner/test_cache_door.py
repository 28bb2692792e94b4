"""The runner's door to its prefix cache: 02 STR, 05 HTP-2, THR-1; a real service, real routes.

The device thread is held by an event where a test needs it busy.
"""

import asyncio
import threading
from types import SimpleNamespace

import httpx
import pytest

from fixtures.scripted import scripted_store
from fixtures.scripted_model import ARCHITECTURE, register
from forerun.models.registry import REGISTRY
from forerun.protocol.cache import CacheReport
from forerun.protocol.codec import decode
from forerun.protocol.events import Done
from forerun.protocol.requests import CompletionRequest
from forerun.runner import app
from forerun.runner import service as service_module
from forerun.runner.app import make_app
from forerun.runner.loading import load_here
from forerun.runner.request import LoadRequest

BUDGET = 1_000_000


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    settings = scripted_store(tmp_path_factory.mktemp("cache_door"))
    register()
    try:
        service = load_here(LoadRequest.under(settings, "scripted", cache_bytes=BUDGET))
    finally:
        del REGISTRY[ARCHITECTURE]
    yield service
    service.close()


@pytest.fixture
def empty(service):
    service.clear_cache()


@pytest.fixture
def hold(service):
    """Lets the device thread, which has a conversation, wait until it is set."""
    say(service, "words SAY:x")
    go_on = threading.Event()
    service._thread.submit(lambda: go_on.wait(20))
    yield go_on
    go_on.set()


def say(service, prompt):
    *_, done = service.complete(CompletionRequest(prompt=prompt))
    assert isinstance(done, Done)
    return done.figures


async def door(service, method):
    served = httpx.ASGITransport(make_app(SimpleNamespace(state=None, service=service)))
    async with httpx.AsyncClient(transport=served, base_url="http://runner") as client:
        return await client.request(method, "/v1/cache")


def seen(service, method="GET"):
    answer = asyncio.run(door(service, method))
    assert answer.status_code == 200, answer.text
    return decode(answer.content, CacheReport)


@pytest.mark.usefixtures("empty")
def test_conversations_are_told_as_a_trie(service):
    """Two that begin alike part where they differ; what is live is told apart from what is kept."""
    say(service, "the same start, then one SAY:x")
    say(service, "the same start, then two SAY:y")
    report = seen(service)
    assert (report.budget, report.context) == (BUDGET, 8192)
    assert report.nodes[0].text == "the same start, then"
    assert report.as_of_seconds == 0
    assert [node.depth for node in report.nodes][:2] == [0, 1]
    assert sum(node.bytes for node in report.nodes) == report.snapshots > 0
    (end,) = [node for node in report.nodes if node.frontier]
    assert (end.active, end.end) == (True, report.live_tokens)
    assert report.live_bytes == 8 * report.live_tokens  # a key and a value of four bytes
    texts = [node.text for node in report.nodes if node.depth == 1]
    assert sorted(text[:3] for text in texts) == ["one", "two"]
    starts = {node.start for node in report.nodes if node.depth == 1}
    assert starts == {len("the same start, then ")}


@pytest.mark.usefixtures("empty")
def test_a_clear_forgets_stored_and_live(service):
    """The next request evaluates its whole prompt; the figures of the status follow."""
    say(service, "something SAY:x")
    say(service, "anything SAY:y")
    held = seen(service)
    service.refresh().result()
    assert service.status().memory.snapshots == held.snapshots > 0
    assert say(service, "anything SAY:y").cached_tokens > 0
    report = seen(service, "DELETE")
    assert report.nodes == []
    assert (report.snapshots, report.live_tokens, report.live_bytes) == (0, 0, 0)
    assert report.freed_bytes >= held.snapshots + 8 > 8
    memory = service.status().memory
    assert (memory.snapshots, memory.caches) == (0, 0)
    assert say(service, "anything SAY:y").cached_tokens == 0
    assert seen(service).freed_bytes == 0


@pytest.mark.usefixtures("empty")
def test_memory_goes_back_to_the_system_once_it_is_free(service, monkeypatch):
    """05 LOD-6: after a clear, and not for a look."""
    say(service, "something SAY:x")
    prefix, seen_free = service.served.engine.prefix, []

    def noted(device):
        seen_free.append((device.type, prefix.snapshot_bytes, prefix.live_tokens))

    monkeypatch.setattr(service_module, "release_freed", noted)
    seen(service)
    assert seen_free == []
    seen(service, "DELETE")
    assert seen_free == [("cpu", 0, 0)]


def test_the_status_tells_what_is_stored(service):
    """HTP-2, 08 RUN-5: measured in the device thread, beside the live caches."""
    say(service, "some words SAY:x")
    say(service, "other words SAY:y")
    service.refresh().result()
    memory = service.status().memory
    report = service.cache()
    assert (memory.snapshots, memory.caches) == (report.snapshots, report.live_bytes)
    assert memory.snapshots > 0


def test_a_busy_model_shows_what_it_had_and_since_when(service, hold, monkeypatch):
    """THR-1: the trie belongs to the device thread, and an answer may be a long one."""
    monkeypatch.setattr(service_module.Service.cache, "__kwdefaults__", {"wait_s": 0.05})
    before = seen(service)
    assert 0 < before.as_of_seconds < 20
    assert any(node.frontier and node.end == before.live_tokens for node in before.nodes)
    assert all(node.age_seconds >= before.as_of_seconds for node in before.nodes)
    hold.set()
    service.refresh().result()
    after = seen(service)
    assert after.as_of_seconds == 0
    assert [node.end for node in after.nodes] == [node.end for node in before.nodes]


def test_a_busy_model_is_not_cleared_behind_its_back(service, hold, monkeypatch):
    monkeypatch.setattr(app, "CLEAR_S", 0.05)
    answer = asyncio.run(door(service, "DELETE"))
    assert (answer.status_code, answer.text) == (
        503,
        "scripted:latest is answering, so nothing was cleared; try again once it is done",
    )
    hold.set()
    service.refresh().result()
    assert seen(service).nodes != []


def test_a_look_during_an_answer_does_not_wait_for_its_end(service):
    """What it shows is from before the answer; a second later it shows what the answer left."""
    say(service, "before SAY:x")
    service.refresh().result()
    held = seen(service)
    stream = service.complete(CompletionRequest(prompt="ENDLESS TOKEN_MS=5 SAY:on "))
    next(iter(stream))
    during = seen(service)
    assert during.as_of_seconds > 0
    assert [node.text for node in during.nodes] == [node.text for node in held.nodes]
    stream.cancel()
    *_, _ended = stream
    service.refresh().result()
    assert any("ENDLESS" in node.text for node in seen(service).nodes)


@pytest.mark.usefixtures("empty")
def test_what_leads_to_something_recent_is_recent(service):
    """02 SWI-9 marks only the node where a request ends; people ask about the way there, too."""
    say(service, "the same start, then one SAY:x")
    say(service, "the same start, then two SAY:y")
    root, *branches = seen(service).nodes
    assert root.age_seconds == min(node.age_seconds for node in branches)
    assert len({node.age_seconds for node in branches}) > 1


def test_a_short_answer_is_waited_for(service, hold):
    async def both():
        asked = asyncio.create_task(door(service, "DELETE"))
        done, _ = await asyncio.wait({asked}, timeout=0.1)
        assert not done
        hold.set()
        return await asked

    assert asyncio.run(both()).status_code == 200


def test_a_clear_while_a_request_runs_comes_after_it(service):
    """The answer is whole, and what it left is gone."""
    stream = service.complete(CompletionRequest(prompt="STEP_MS=20 SAY:hello"))
    report = seen(service, "DELETE")
    *_, done = stream
    assert (done.reason, done.figures.generated_tokens) == ("stop", 6)
    assert report.freed_bytes > 0
    assert report.nodes == []


def test_before_the_load_there_is_no_cache():
    """HTP-3."""
    answer = asyncio.run(door(None, "GET"))
    assert answer.status_code == 503
    assert "not loaded yet" in answer.text
