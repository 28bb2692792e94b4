"""A message of several lines crosses every border as its first one: 05 THR-4, LOD-10."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from starlette.requests import Request

from fixtures.toy import ListSink, ToyTarget, ask, endless, loaded_toy
from forerun.base.errors import BusyError, ForerunError, LoadError
from forerun.engine.thread import DeviceThread
from forerun.protocol.codec import decode_import_event, encode_line
from forerun.protocol.events import Failed
from forerun.protocol.imports import PullRequest
from forerun.runner import loading
from forerun.runner.app import make_app
from forerun.runner.request import LoadRequest
from forerun.runner.respond import Responder
from forerun.runner.service import Service
from forerun.runner.serving import Runner
from forerun.runner.stream import EventStream

FIRST = "CUDA error: device-side assert triggered"
TEXT = (  # as torch words it
    f"{FIRST}\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)
REASON = f"internal error: RuntimeError: {FIRST}"


def test_a_request_is_answered_with_one_line():
    target, sink = ToyTarget(endless), ListSink()
    target.fails_at, target.error = 2, RuntimeError(TEXT)
    with pytest.raises(RuntimeError):
        ask(loaded_toy(target), [1, 2, 3], 5, sink=sink)
    assert str(sink.error) == REASON


@pytest.mark.parametrize(
    ("error", "reason"), [(RuntimeError(TEXT), REASON), (LoadError(TEXT), FIRST)]
)
def test_a_failed_load_has_one_line_for_its_reason(monkeypatch, error, reason):
    """LOD-10."""

    def breaks(*_):
        raise error

    monkeypatch.setattr(loading, "load", breaks)
    runner = Runner(LoadRequest("tiny", Path()))
    runner._load()
    runner._thread.close()
    assert runner.state.status.reason == reason


def test_a_request_that_broke_outside_is_a_500_of_one_line():
    app = make_app(Runner(LoadRequest("tiny", Path())))
    broken = app.exception_handlers[Exception]
    scope = {"type": "http", "path": "/v1/embed", "headers": [], "query_string": b""}
    response = asyncio.run(broken(Request(scope), RuntimeError(TEXT)))
    assert (response.status_code, response.body.decode()) == (500, REASON)


def test_a_refused_request_is_answered_with_one_line():
    app = make_app(Runner(LoadRequest("tiny", Path())))
    refused = app.exception_handlers[ForerunError]
    response = asyncio.run(refused(None, BusyError(TEXT)))
    assert (response.status_code, response.body.decode()) == (503, FIRST)


def test_an_answer_that_fails_ends_with_one_line():
    stream = EventStream()
    Responder(stream, NoTokenizer(), ()).fail(BusyError(TEXT))
    assert stream.take() == [Failed(status=503, message=FIRST)]


class NoTokenizer:
    """None is needed where no token comes."""

    def decode_stream(self):
        return None


def test_a_lost_device_is_logged_in_one_line(caplog):
    """THR-4."""
    lost = threading.Event()
    thread = DeviceThread(on_lost=lambda _: lost.set())

    def breaks():
        raise torch.AcceleratorError(TEXT)

    with caplog.at_level(logging.ERROR, "forerun.engine.thread"):
        thread.submit(breaks)
        assert lost.wait(5)
    thread.close()
    assert caplog.messages == [f"the device is lost: {FIRST}"]


def test_a_request_whose_sink_broke_ends_with_one_line():
    future: Future[None] = Future()
    future.set_exception(RuntimeError(TEXT))
    service, stream = Service.__new__(Service), EventStream()
    service._lock, service._streams = threading.Lock(), {stream}
    service._ended(stream, future)
    assert stream.take() == [Failed(status=500, message=REASON)]


def test_a_lost_device_ends_the_process_with_its_reason():
    """THR-4: after it no call can work; the reason is the last error line."""
    code = (
        "import sys, torch\n"
        "from forerun.runner.serving import end_at_once\n"
        "end_at_once(torch.AcceleratorError(sys.argv[1]))\n"
    )
    found = subprocess.run([sys.executable, "-c", code, TEXT], capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr.splitlines() == [f"Error: the device is lost: {FIRST}"]
    assert issubclass(torch.AcceleratorError, RuntimeError)


@pytest.mark.parametrize(
    ("error", "message"),
    [("RuntimeError", f"the import failed: {REASON}"), ("ForerunError", FIRST)],
)
def test_a_failed_import_is_one_line(tmp_path, error, message):
    code = (
        "import sys\n"
        "from forerun.base.errors import ForerunError\n"
        "import forerun.importer.pull as module\n"
        "def pull(*_):\n"
        f"    raise {error}(sys.argv[1])\n"
        "module.pull = pull\n"
        "from forerun.importer.__main__ import main\n"
        "sys.exit(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, TEXT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "FORERUN_MODELS": str(tmp_path)},
    ) as child:
        child.stdin.write(encode_line(PullRequest(name="a")))
        child.stdin.flush()
        event = decode_import_event(child.stdout.readline())
    assert isinstance(event, Failed)
    assert event.message == message
