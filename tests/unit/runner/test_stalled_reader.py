"""A reader that takes nothing holds the device thread for the stall limit and no longer: 05 DEC-8.

The limit of a runner is half a minute; here it is shorter, over the same service and routes.
"""

import asyncio
import json
from functools import partial
from types import SimpleNamespace

import pytest

from fixtures.scripted import scripted_store
from fixtures.scripted_model import ARCHITECTURE, register
from forerun.models.registry import REGISTRY
from forerun.protocol.events import Chunk, Done, Failed
from forerun.protocol.requests import CompletionRequest
from forerun.runner.app import make_app
from forerun.runner.loading import load_here
from forerun.runner.request import LoadRequest
from forerun.runner.stream import StreamLimits

SHORT = StreamLimits(events=4, stall_s=0.2)
ENDLESS = "ENDLESS SAY:on and on.<|im_end|>"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    settings = scripted_store(tmp_path_factory.mktemp("stalled"))
    register()
    try:
        service = load_here(LoadRequest.under(settings, "scripted"))
    finally:
        del REGISTRY[ARCHITECTURE]
    yield service
    service.close()


def text(events):
    return "".join(event.text for event in events if isinstance(event, Chunk))


def test_a_stream_that_nobody_reads_ends_and_the_next_request_runs(service):
    stalled = service.complete(CompletionRequest(prompt=ENDLESS), SHORT)
    *events, done = service.complete(CompletionRequest(prompt="SAY:yes<|im_end|>"))
    assert isinstance(done, Done)
    assert text(events) == "yes"
    *early, failed = stalled  # whoever comes back finds what there was, and how it ended
    assert isinstance(failed, Failed)
    assert failed.status == 499
    assert "on and on.".startswith(text(early))
    assert service.status().active_requests == 0


def test_a_connection_that_takes_nothing_frees_the_device(service):
    """With the connection still open: its client may come back, or leave."""
    loading = SimpleNamespace(
        state=None, service=SimpleNamespace(complete=partial(service.complete, limits=SHORT))
    )
    body = json.dumps({"prompt": ENDLESS}).encode()
    scope = {
        **{"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b""},
        **{"headers": [], "http_version": "1.1"},
    }

    async def exchange(*, comes_back):
        full, left, sent = asyncio.Event(), asyncio.Event(), []
        asked = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if asked:
                return asked.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)
            if message["type"] == "http.response.body" and not full.is_set():
                full.set()
                await room.wait()

        room = asyncio.Event()
        answering = asyncio.ensure_future(make_app(loading)(scope, receive, send))
        await full.wait()
        other = service.complete(CompletionRequest(prompt="SAY:yes<|im_end|>"))
        assert text(await asyncio.to_thread(list, other)) == "yes"
        assert not answering.done()
        (room if comes_back else left).set()
        await asyncio.wait_for(answering, 20)
        return b"".join(message.get("body", b"") for message in sent)

    last = json.loads(asyncio.run(exchange(comes_back=True)).splitlines()[-1])
    assert (last["type"], last["status"]) == ("failed", 499)
    asyncio.run(exchange(comes_back=False))
