"""A real server, real runners, and what goes wrong between them and their clients.

08 RUN-9, RUN-14, SCH-8, API-14; reports E11, G01, G03.
"""

import json
import os
import random
import signal
import socket
import threading
import time
from contextlib import closing

import ollama
import pytest

from fixtures.scripted import scripted_store
from fixtures.server import alive, scripted_server
from fixtures.waiting import wait_until

NAMES = ("alpha", "beta", "gamma")
LONG = "x" * 1600  # bytes, which are tokens: more than three chunks of a prompt
SLOW_STEP_S, SLOW_CHUNK_S = 0.3, 1.5


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return scripted_store(tmp_path_factory.mktemp("faults"), names=NAMES)


@pytest.fixture(scope="module")
def server(store):
    with scripted_server(store) as process:
        yield process


def said(server, model, text):
    """A whole answer, through the official client."""
    message = [{"role": "user", "content": f"SAY:{text}"}]
    with ollama.Client(host=server.url) as client:
        return client.chat(model=model, messages=message).message.content


def unload(server, model):
    with ollama.Client(host=server.url) as client:
        return client.generate(model=model, keep_alive=0).done_reason


class Stream:
    """A streamed answer by hand, to be left at any moment."""

    def __init__(self, server, content, model="alpha"):
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": content}]})
        head = f"POST /api/chat HTTP/1.0\r\nhost: localhost\r\ncontent-length: {len(body)}"
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        self._socket.sendall(f"{head}\r\n\r\n{body}".encode())
        self._file = self._socket.makefile("rb")

    def first(self):
        """The first object, after the head."""
        assert self._file.readline().split()[1] == b"200"
        while self._file.readline().strip():
            pass
        return json.loads(self._file.readline())

    def rest(self):
        return [json.loads(line) for line in self._file]

    def close(self):
        self._file.close()
        self._socket.close()


def test_a_killed_runner_is_an_error_line_and_the_next_request_works(server):
    """08 RUN-9, API-14: kill -9 in the middle of a stream."""
    assert said(server, "alpha", "ready") == "ready"
    before = set(server.runners())
    with closing(Stream(server, "TOKEN_MS=20 ENDLESS SAY:abc")) as connection:
        connection.first()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        lines = connection.rest()
    assert not any(line.get("done") for line in lines)
    assert "error" in lines[-1]
    assert "\n" not in lines[-1]["error"]
    assert said(server, "alpha", "again") == "again"
    assert not before & set(server.runners())
    assert wait_until(lambda: not any(map(alive, before)), 5)


def test_a_killed_runner_is_an_exception_of_the_official_client(server):
    assert said(server, "alpha", "ready") == "ready"
    message = [{"role": "user", "content": "TOKEN_MS=20 ENDLESS SAY:abc"}]
    with ollama.Client(host=server.url) as client:
        stream = client.chat(model="alpha", messages=message, stream=True)
        next(stream)
        for pid in server.runners():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(ollama.ResponseError):
            list(stream)
    assert said(server, "alpha", "again") == "again"


def test_a_killed_server_leaves_no_runner(store):
    """08 RUN-14: within 5 s, in the middle of an answer too."""
    with scripted_server(store) as server:
        assert said(server, "alpha", "ready") == "ready"
        with closing(Stream(server, "TOKEN_MS=50 ENDLESS SAY:abc")) as connection:
            connection.first()
            runners = server.runners()
            assert runners
            server.kill()
            assert wait_until(lambda: not any(map(alive, runners)), 5)


def test_a_killed_server_leaves_no_runner_that_was_loading(tmp_path):
    """08 RUN-14."""
    slow = scripted_store(tmp_path, load_ms=20_000)
    with scripted_server(slow) as server, closing(Stream(server, "SAY:x", "scripted")):
        assert wait_until(server.runners, 20)
        runners = server.runners()
        server.kill()
        assert wait_until(lambda: not any(map(alive, runners)), 5)


@pytest.mark.parametrize(
    ("content", "first_line", "longest_s"),
    [
        (f"TOKEN_MS={1000 * SLOW_STEP_S:.0f} ENDLESS SAY:abc", True, SLOW_STEP_S),
        (f"CHUNK_MS={1000 * SLOW_CHUNK_S:.0f} {LONG} SAY:abc", False, SLOW_CHUNK_S),
    ],
    ids=["decode", "prefill"],
)
def test_a_client_that_leaves_frees_the_device_within_one_step(
    server, content, first_line, longest_s
):
    """05 HTP-5, DEC-10: one decode step or one chunk of the prompt."""
    assert said(server, "alpha", "ready") == "ready"
    for _ in range(2):
        connection = Stream(server, content)
        if first_line:
            connection.first()
        else:
            time.sleep(0.4)  # inside the first chunk
        connection.close()
        started = time.monotonic()
        assert said(server, "alpha", "next") == "next"
        assert time.monotonic() - started < longest_s + 1


def test_a_client_that_leaves_while_it_waits_is_skipped(server):
    """08 SCH-8, 05 THR-2: its prompt is never evaluated."""
    assert said(server, "alpha", "ready") == "ready"
    with closing(Stream(server, "STEP_MS=100 SAY:abcdefgh")) as working:
        working.first()
        for _ in range(5):
            Stream(server, f"CHUNK_MS=2000 {LONG} SAY:never").close()
        started = time.monotonic()
        assert said(server, "alpha", "next") == "next"
        assert time.monotonic() - started < 2 + 1


def test_an_unloaded_model_ends_its_answer_in_bounded_time(server):
    """G01: an answer without an end is given a grace, then cut with an error."""
    assert said(server, "beta", "ready") == "ready"
    with closing(Stream(server, "TOKEN_MS=50 ENDLESS SAY:abc", "beta")) as connection:
        connection.first()
        before = set(server.runners())
        started = time.monotonic()
        assert unload(server, "beta") == "unload"
        lines = connection.rest()
        assert "was unloaded" in lines[-1]["error"]  # no failure of the runner's
        assert time.monotonic() - started < 15
    assert wait_until(lambda: before - set(server.runners()), 10)
    assert said(server, "beta", "again") == "again"


def test_three_models_with_room_for_one_under_mixed_requests(store):
    """G03, E11, 08 SCH-3: no deadlock, no mixed answers, memory returned."""
    chance = random.Random(7)
    plans = [
        (number, NAMES[number % 3], chance.random() < 0.3, chance.uniform(0, 0.3))
        for number in range(60)
    ]
    wrong: list[object] = []

    def run(number, model, leaves, after_s):
        text = f"{model} answers {number}"
        if leaves:
            connection = Stream(server, f"TOKEN_MS=5 ENDLESS SAY:{text}", model)
            time.sleep(after_s)
            connection.close()
            return
        try:
            answer = said(server, model, text)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is wrong
            answer = repr(error)
        if answer != text:
            wrong.append((text, answer))

    with scripted_server(store, FORERUN_MAX_LOADED_MODELS="1") as server:
        threads = [threading.Thread(target=run, args=plan, daemon=True) for plan in plans]
        for thread in threads:
            thread.start()
            time.sleep(0.02)
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []
        assert len(server.runners()) <= 1
        for name in NAMES:
            unload(server, name)
        assert wait_until(lambda: not server.runners(), 10)
        assert said(server, "gamma", "well") == "well"
