"""What a runner can do to its client: stall, break off, refuse (08 RUN-4, RUN-9).

The other side here only replays bytes; what a real runner says is tested end to end.
"""

import socket
import threading

import pytest

from forerun.base.errors import BusyError, NotFoundError, RequestError, RunnerError
from forerun.protocol.events import Chunk, Done
from forerun.protocol.requests import CompletionRequest
from forerun.scheduler.connection import Connection

OK = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CHUNK = b'{"type":"chunk","text":"a"}\n'
DONE = (
    b'{"type":"done","reason":"stop","figures":{"prompt_tokens":1,"cached_tokens":0,'
    b'"generated_tokens":1,"prompt_seconds":0,"generation_seconds":0}}\n'
)


@pytest.fixture
def replay(tmp_path):
    """A connection to a socket that answers with given bytes, and then closes or hangs."""
    listeners, threads = [], []

    def start(data, *, hang=False):
        path = tmp_path / "socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        listeners.append(listener)

        def answer():
            client, _ = listener.accept()
            with client:
                client.recv(65536)
                client.sendall(data)
                if not hang:
                    client.shutdown(socket.SHUT_WR)
                while client.recv(65536):  # closing on unread bytes would reset the connection
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        threads.append(thread)
        return Connection(path, lambda: "out of memory")

    yield start
    for thread in threads:
        thread.join()
    for listener in listeners:
        listener.close()


def chunked(*lines):
    return b"".join(b"%x\r\n%s\r\n" % (len(line), line) for line in lines)


def test_events_until_done(replay):
    connection = replay(OK + chunked(CHUNK, CHUNK + DONE) + b"0\r\n\r\n")
    events = list(connection.complete(CompletionRequest(prompt="a")))
    assert [type(event) for event in events] == [Chunk, Chunk, Done]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK",
        OK,
        OK + chunked(CHUNK),
        OK + b"1a\r\n" + CHUNK[:10],
        OK + chunked(CHUNK) + b"0\r\n\r\n",
    ],
)
def test_an_answer_that_breaks_off_is_one_error_with_the_reason(replay, data):
    """RUN-9: an answer that ends without Done or Failed is a failure, wherever it ends."""
    connection = replay(data)
    with pytest.raises(RunnerError, match="out of memory"):
        list(connection.complete(CompletionRequest(prompt="a")))


def test_a_failure_after_the_start_is_raised_as_what_it_is(replay):
    failed = b'{"type":"failed","status":400,"message":"no token is allowed here"}\n'
    connection = replay(OK + chunked(CHUNK, failed) + b"0\r\n\r\n")
    events = connection.complete(CompletionRequest(prompt="a"))
    assert next(events) == Chunk(text="a")
    with pytest.raises(RequestError, match="no token is allowed here"):
        next(events)


@pytest.mark.parametrize(
    ("status", "error"), [(400, RequestError), (404, NotFoundError), (503, BusyError)]
)
def test_a_refusal_is_raised_as_what_it_is(replay, status, error):
    body = b"because of that"
    head = b"HTTP/1.1 %d No\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
    with pytest.raises(error, match="because of that"):
        list(replay(head + body).complete(CompletionRequest(prompt="a")))


def test_a_load_without_progress_is_given_up(replay):
    """RUN-4: the limit counts from the last change, not from the start."""
    line = b'{"state":"loading","phase":"loading weights","progress":0.5}\n'
    states = replay(OK + chunked(line), hang=True).watch(0.2)
    assert next(states).progress == 0.5
    with pytest.raises(RunnerError, match=r"no progress for 0\.2 s"):
        next(states)
    states.close()


def test_a_socket_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(RunnerError, match="it crashed"):
        Connection(tmp_path / "absent", lambda: "it crashed").status()
