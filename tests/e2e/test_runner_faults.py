"""A runner whose clients leave or stall and whose model breaks: THR-2, THR-3, REQ-3, HTP-5, DEC-8,
RUN-9; reports E11 and G07.

Times are of sleeps in the model's forwards, with room for a busy machine.
"""

import asyncio
import json
import os
import random
import signal
import socket
import threading
import time
from contextlib import aclosing

import pytest

from fixtures.scripted import SCRIPTED_RUNNER, scripted_store
from fixtures.waiting import wait_until
from forerun.base.errors import ForerunError, RequestError, RunnerError
from forerun.protocol.events import Chunk, Done, Progress
from forerun.protocol.requests import CompletionRequest, Message
from forerun.scheduler.runners import LoadOptions, RunnerProcess

CHUNKS = "x" * 3000  # of the prompt: six, of 512 tokens each


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return scripted_store(tmp_path_factory.mktemp("faults"))


@pytest.fixture(scope="module")
def runner(store):
    with RunnerProcess("scripted", store, module=SCRIPTED_RUNNER) as process:
        process.load()
        yield process


@pytest.fixture
def mortal(store):
    """A runner for one test."""
    with RunnerProcess("scripted", store, module=SCRIPTED_RUNNER) as process:
        process.load()
        yield process


def test_a_process_that_says_nothing_at_all_is_a_stall(store):
    """RUN-4: stopped, say, or stuck in an import, before there is a socket to watch."""
    process = RunnerProcess("silent", store, module="fixtures.child")
    helper = threading.Timer(5.0, process.close)  # the load would wait for ever
    helper.start()
    try:
        with process, pytest.raises(RunnerError, match=r"no progress for 0\.3 s"):
            process.load(stall_s=0.3)
    finally:
        helper.cancel()


def ask(content, **options):
    return CompletionRequest(messages=[Message(role="user", content=content)], options=options)


def as_server(process):
    """The connection that the server has."""
    return process.async_connection


def said(process, request):
    *events, done = process.connection.complete(request)
    assert isinstance(done, Done)
    return "".join(event.text for event in events if isinstance(event, Chunk))


def idle(process):
    status = process.connection.status()
    return status.active_requests == status.queued_requests == 0


def test_a_reader_that_leaves_while_the_prompt_is_evaluated(runner):
    """HTP-5, THR-2, PRE-1: no chunk begins after the one under way."""
    events = runner.connection.complete(ask(f"CHUNK_MS=700 {CHUNKS} SAY:no"))
    assert isinstance(next(events), Progress)
    left = time.monotonic()
    events.close()
    assert wait_until(lambda: idle(runner))
    assert time.monotonic() - left < 2  # and not the 4.2 s of six chunks
    assert said(runner, ask("SAY:yes")) == "yes"


def test_a_reader_that_leaves_while_text_is_made(runner):
    """HTP-5, THR-2, DEC-10: one step more at most."""
    events = runner.connection.complete(ask("ENDLESS TOKEN_MS=300 SAY:on and on"))
    while not isinstance(next(events), Chunk):
        pass
    left = time.monotonic()
    events.close()
    assert wait_until(lambda: idle(runner))
    assert time.monotonic() - left < 2
    assert said(runner, ask("SAY:yes")) == "yes"


def test_a_reader_that_leaves_while_it_is_queued(runner):
    """HTP-5, THR-2: its prompt is not even begun."""
    first = runner.connection.complete(ask("ENDLESS TOKEN_MS=20 SAY:on and on"))
    next(first)

    async def leave_the_queue():
        async with aclosing(
            as_server(runner).complete(ask(f"CHUNK_MS=3000 {CHUNKS} SAY:no"))
        ) as events:
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.to_thread(
                wait_until, lambda: runner.connection.status().queued_requests == 1
            )
            waiting.cancel()
            await asyncio.wait({waiting})

    asyncio.run(leave_the_queue())
    first.close()
    freed = time.monotonic()
    assert said(runner, ask("SAY:yes")) == "yes"
    assert time.monotonic() - freed < 3


def test_any_number_of_readers_that_leave_anywhere(runner, capsys):
    """E11: while they send, wait or read; the next request is answered as if they had not been."""
    draw = random.Random(11)
    body = json.dumps(
        {"messages": [{"role": "user", "content": f"STEP_MS=1 {'x' * 600} SAY:{'word ' * 9}"}]}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    for _ in range(100):
        sent = draw.choice((draw.randrange(len(request)), len(request)))
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(20)
            client.connect(str(runner.socket))
            client.sendall(request[:sent])
            if sent == len(request):
                for _ in range(draw.randrange(4)):
                    client.recv(draw.randrange(1, 300))
    assert said(runner, ask("SAY:yes 👩‍💻")) == "yes 👩‍💻"
    assert wait_until(lambda: idle(runner))
    assert "Traceback" not in capsys.readouterr().err


def test_a_forward_that_raises_fails_its_request_alone(runner, capsys):
    """REQ-3, THR-3: one line for the client, the worker's trace in the log, and life goes on."""
    before = said(runner, ask("SAY:abcdef"))
    request = ask("FAIL_AT=3 SAY:abcdef")
    for _ in range(3):
        events = runner.connection.complete(request)
        with pytest.raises(ForerunError) as caught:
            list(events)
        assert type(caught.value) is ForerunError  # a 500
        said_in_one_line = "internal error: RuntimeError: the scripted model was told to fail"
        assert str(caught.value) == said_in_one_line
    shown = ""

    def traced():
        nonlocal shown
        shown += capsys.readouterr().err
        return shown.count("in two lines") >= 3

    assert wait_until(traced)
    assert "scripted_model.py" in shown  # where it was raised, and not where it was passed on
    assert idle(runner)
    assert said(runner, ask("SAY:abcdef")) == before


def test_text_before_a_failure_is_handed_out(runner):
    """RUN-9 in a request: what was said stays said, then one error."""
    shown = ""
    with pytest.raises(ForerunError, match="told to fail"):
        for event in runner.connection.complete(ask("STEP_MS=30 FAIL_AT=5 SAY:abcdef")):
            shown += event.text if isinstance(event, Chunk) else ""
    assert shown
    assert "abcd".startswith(shown)  # drafts of the forward that failed are not said


def test_a_runner_that_is_killed_in_mid_answer_is_one_error(mortal):
    """RUN-8, RUN-9: on the server's connection, for those who wait and those who come later."""
    connection = as_server(mortal)

    async def lose():
        async with asyncio.timeout(20):
            events = connection.complete(ask("ENDLESS TOKEN_MS=20 SAY:on and on"))
            while not isinstance(await anext(events), Chunk):
                pass
            queued = asyncio.ensure_future(anext(connection.complete(ask("SAY:no"))))
            await asyncio.sleep(0)
            os.kill(mortal.pid, signal.SIGKILL)
            with pytest.raises(RunnerError) as caught:
                async for _ in events:
                    pass
            with pytest.raises(RunnerError):
                await queued
            with pytest.raises(RunnerError):
                await connection.status()
        return str(caught.value)

    message = asyncio.run(lose())
    assert message.startswith("the runner failed: it was killed (SIGKILL)")
    assert "\n" not in message
    assert wait_until(lambda: mortal.exited)


def test_the_last_words_of_a_runner_are_in_the_error(mortal):
    """RUN-9."""

    async def lose():
        async for _ in as_server(mortal).complete(ask("DIE_AT=5 SAY:abcdefgh")):
            pass

    with pytest.raises(RunnerError) as caught:
        asyncio.run(lose())
    assert str(caught.value) == "the runner failed: the scripted model was told to die"


def test_a_model_that_never_ends_is_ended_by_the_context(store):
    """G07: memory is bounded by what was loaded, and the next request finds a working runner."""
    options = LoadOptions(num_ctx=300)
    endless = "ENDLESS SAY:on and on"
    with RunnerProcess("scripted", store, options=options, module=SCRIPTED_RUNNER) as process:
        assert process.load().context_length == 300
        for _ in range(2):
            *_, done = process.connection.complete(ask(endless, num_predict=-1))
            figures = done.figures
            assert done.reason == "length"
            assert figures.prompt_tokens + figures.generated_tokens == 300
        *_, done = process.connection.complete(ask(endless, num_predict=-1, num_ctx=100))
        assert done.figures.prompt_tokens + done.figures.generated_tokens == 100
        assert said(process, ask("SAY:yes")) == "yes"


def test_what_needs_no_device_does_not_wait_for_it(mortal):
    """08 T10, HTP-2: while one forward takes for ever, the status has the latest figures, mistakes
    are refused and tokens are text.
    """

    async def look():
        connection = as_server(mortal)
        async with aclosing(connection.complete(ask("STEP_MS=60000 SAY:no"))) as events:
            await anext(events)
            for _ in range(5):
                started = time.monotonic()
                status = await connection.status()
                assert time.monotonic() - started < 1
                assert (status.state, status.active_requests) == ("ready", 1)
                assert status.memory.weights > 0
            async with asyncio.timeout(5):
                assert await connection.detokenize([*b"abc"]) == "abc"
                with pytest.raises(RequestError):
                    await anext(connection.complete(ask("a", top_p=7)))

    asyncio.run(look())


def test_a_request_that_is_far_too_large_is_told_so(runner):
    """HTP-3: on the server's connection, too, which is still sending."""

    async def send():
        await anext(as_server(runner).complete(ask("x" * 40_000_000)))

    with pytest.raises(RequestError, match=r"over 32\.0 MB"):
        asyncio.run(send())


def test_many_requests_at_once_are_each_answered(runner):
    """THR-1: more than the listener's backlog of a process that is busy."""

    async def one(number):
        found = ""
        async for event in as_server(runner).complete(ask(f"SAY:{number}")):
            found += event.text if isinstance(event, Chunk) else ""
        return found

    async def all_of_them():
        return await asyncio.gather(*map(one, range(150)))

    assert asyncio.run(all_of_them()) == [str(number) for number in range(150)]
