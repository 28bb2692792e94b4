"""A runner process over a tiny real model: 05 HTP, LOD-10, THR; 08 RUN."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from fixtures.stored import tiny_store
from fixtures.waiting import wait_until
from forerun.base.errors import (
    BusyError,
    LoadError,
    MachineError,
    NotFoundError,
    RequestError,
    RunnerError,
    UnsupportedError,
)
from forerun.protocol.events import Chunk, Done, Progress
from forerun.protocol.requests import CompletionRequest, EmbedRequest, Message, TokenizeRequest
from forerun.scheduler.connection import Connection
from forerun.scheduler.runners import LoadOptions, RunnerProcess

ONE_THREAD = LoadOptions(num_thread=1)
ENDLESS = {"logit_bias": {"256": -100, "258": -100}, "temperature": 0}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return tiny_store(tmp_path_factory.mktemp("runner"))


@pytest.fixture(scope="module")
def runner(settings):
    with RunnerProcess("tiny", settings, options=ONE_THREAD) as process:
        process.load()
        yield process


def ask(prompt, **options):
    return CompletionRequest(prompt=prompt, options={"temperature": 0, **options})


def text(connection, request):
    return "".join(e.text for e in connection.complete(request) if isinstance(e, Chunk))


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def raw(runner, data):
    """One HTTP exchange byte by byte."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(runner.connection._path))
        connection.sendall(data)
        return connection.makefile("rb").read()


def post(path, body):
    fields = ["host: x", "connection: close", f"content-length: {len(body)}", "", ""]
    return "\r\n".join([f"POST {path} HTTP/1.1", *fields]).encode() + body


def test_the_socket_is_private(runner):
    """05 HTP-1, 08 RUN-2: a folder of mode 0700."""
    path = runner.connection._path
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.is_socket()


def test_a_load_reports_its_states_in_order(settings):
    """05 HTP-2, 08 RUN-1, RUN-4: open from the start, then progress, then ready with figures."""
    seen = []
    with RunnerProcess("tiny", settings, options=ONE_THREAD) as process:
        status = process.load(seen.append)
    assert [s.state for s in seen] == ["loading"] * (len(seen) - 1) + ["ready"]
    assert len(seen) >= 2
    progress = [s.progress for s in seen]
    assert progress == sorted(progress)
    assert status.context_length == 512
    assert status.memory.weights > 100_000
    assert status.load_seconds > 0


def test_completions_end_with_exactly_one_done(runner):
    """05 HTP-3."""
    events = list(runner.connection.complete(ask("Once upon", num_predict=6, **ENDLESS)))
    assert [type(e) for e in events if not isinstance(e, Chunk)] == [
        *[Progress] * sum(isinstance(e, Progress) for e in events),
        Done,
    ]
    assert isinstance(events[0], Progress)
    done = events[-1]
    assert (done.reason, done.figures.generated_tokens) == ("length", 6)
    assert 0 < done.figures.first_token_seconds < 60
    assert done.figures.load_seconds > 0


def test_a_text_may_be_told_to_run_to_its_budget(runner):
    """For measuring: a stop token is a token like others."""
    always_ending = {"logit_bias": {"258": 100}, "temperature": 0, "num_predict": 4}
    ends = CompletionRequest(prompt_ids=[97], options=always_ending)
    *_, done = runner.connection.complete(ends)
    assert (done.reason, done.figures.generated_tokens) == ("stop", 0)
    goes_on = CompletionRequest(prompt_ids=[97], options=always_ending, ignore_eos=True)
    *_, done = runner.connection.complete(goes_on)
    assert (done.reason, done.figures.generated_tokens) == ("length", 4)


def test_each_answer_is_json_lines(runner):
    body = b'{"prompt":"a","options":{"num_predict":3,"temperature":0}}'
    answer = raw(runner, post("/v1/completions", body))
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"application/x-ndjson" in head
    lines = [line for line in rest.split(b"\r\n") if line.startswith(b"{")]
    kinds = [json.loads(line)["type"] for lump in lines for line in lump.splitlines()]
    assert kinds[-1] == "done"
    assert set(kinds) <= {"progress", "chunk", "done"}


def test_chat_goes_through_the_template(runner):
    request = CompletionRequest(
        messages=[Message(role="user", content="hi <|im_end|>")], options={"num_predict": 0}
    )
    *_, done = runner.connection.complete(request)
    prompt = "<|im_start|>user\nhi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    whole = runner.connection.tokenize(TokenizeRequest(text=prompt))
    assert done.figures.prompt_tokens == len(whole) + len("<|im_end|>") - 1  # typed, so plain text


def test_tokenize_and_detokenize(runner):
    """05 HTP-4."""
    assert runner.connection.tokenize(TokenizeRequest(text="a<|im_end|>")) == [97, 258]
    plain = TokenizeRequest(text="<|im_end|>", special=False)
    assert bytes(runner.connection.tokenize(plain)) == b"<|im_end|>"
    assert runner.connection.detokenize([97, 258]) == "a<|im_end|>"


def test_embed(runner):
    """05 HTP-4, 08 API-13."""
    embeddings = runner.connection.embed(EmbedRequest(texts=["one", "two!"]))
    assert [len(vector) for vector in embeddings.vectors] == [64, 64]
    assert embeddings.prompt_tokens == 7


@pytest.mark.parametrize(
    ("request_", "error", "says"),
    [
        (CompletionRequest(), RequestError, "send one of prompt"),
        (ask("a", top_p=7), RequestError, "top_p is 7"),
        (ask("a", nonsense=7), RequestError, "nonsense"),
        (ask("a" * 600), RequestError, "600 tokens and the context is 512"),
        (CompletionRequest(prompt="a", format="json"), UnsupportedError, "format"),
    ],
)
def test_a_mistake_is_an_http_error_with_its_reason(runner, request_, error, says):
    """PRP-7: nothing is queued."""
    with pytest.raises(error, match=says):
        list(runner.connection.complete(request_))
    assert runner.connection.status().active_requests == 0


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"prompt":1}', b'{"promt":"a"}', b"\xff\xfe", b"[" * 100_000]
)
def test_a_malformed_body_is_a_400_in_plain_text(runner, body):
    """05 HTP-3, PRP-7."""
    answer = raw(runner, post("/v1/completions", body))
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"text/plain" in answer
    assert b"malformed message" in answer


def test_what_is_not_there_is_a_404(runner):
    assert raw(runner, post("/v1/nothing", b"{}")).startswith(b"HTTP/1.1 404")
    assert raw(runner, post("/v1/status", b"{}")).startswith(b"HTTP/1.1 405")


def test_the_status_tells_memory_and_requests_at_work(runner):
    """05 HTP-2, DEC-8: a device thread that waits for a slow reader keeps no answer waiting."""
    idle = runner.connection.status()
    assert (idle.state, idle.active_requests, idle.queued_requests) == ("ready", 0, 0)
    assert idle.memory.device_total > 0
    unread = CompletionRequest(  # more than what lies between device and reader can hold
        prompt="Once upon",
        options={**ENDLESS, "num_predict": 490},
        logprobs=True,
        top_logprobs=20,
    )
    events = runner.connection.complete(unread)
    queued = runner.connection.complete(ask("b", num_predict=1))
    next(events)
    waiter = threading.Thread(target=lambda: list(queued))
    waiter.start()
    assert wait_until(lambda: runner.connection.status().queued_requests == 1)
    started = time.monotonic()
    busy = runner.connection.status()
    assert time.monotonic() - started < 2
    assert busy.active_requests == 1
    events.close()
    waiter.join()


def test_a_request_too_large_to_be_one_is_refused(runner):
    """05 HTP-3: before all of it is in memory; the next request works."""
    with pytest.raises(RequestError, match=r"over 32\.0 MB"):
        list(runner.connection.complete(ask("x" * 33_000_000)))
    assert text(runner.connection, ask("Once", num_predict=1)) is not None


def test_a_reader_that_leaves_cancels_its_request(runner):
    """05 HTP-5, DEC-10, THR-2: active and queued alike, and nothing of it stays behind."""
    expected = text(runner.connection, ask("Once upon a time", num_predict=8))
    for taken in (0, 1, 3, 8):
        active = runner.connection.complete(ask("Once upon", num_predict=480, **ENDLESS))
        for _ in range(taken):
            next(active)
        active.close()
    assert wait_until(lambda: runner.connection.status().active_requests == 0)
    assert text(runner.connection, ask("Once upon a time", num_predict=8)) == expected


def test_requests_from_several_clients_are_answered_one_after_another(runner):
    """THR-1."""
    prompts = [f"{letter} story" for letter in "abcd"]
    expected = [text(runner.connection, ask(prompt, num_predict=8)) for prompt in prompts]
    found = [""] * len(prompts)

    def fill(place):
        found[place] = text(runner.connection, ask(prompts[place], num_predict=8))

    threads = [threading.Thread(target=fill, args=(place,)) for place in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_a_runner_that_is_killed_is_one_error_and_no_orphan(settings):
    """08 RUN-9, RUN-8: kill -9 in the middle of an answer."""
    with RunnerProcess("tiny", settings, options=ONE_THREAD) as process:
        process.load()
        events = process.connection.complete(ask("Once", num_predict=480, **ENDLESS))
        next(events)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(RunnerError) as caught:
            list(events)
        assert "\n" not in str(caught.value)
        with pytest.raises(RunnerError):  # concurrent and later requests get an error as well
            process.connection.status()
        assert process.exited
        pid = process.pid
    assert gone(pid)


def test_close_returns_when_the_process_is_gone(settings):
    """08 RUN-6, T1."""
    process = RunnerProcess("tiny", settings, options=ONE_THREAD)
    process.load()
    pid, folder = process.pid, process.connection._path.parent
    process.close()
    assert gone(pid)
    assert not folder.exists()
    process.close()


def test_a_load_after_close_refuses(settings):
    """08 RUN-7, T3."""
    process = RunnerProcess("tiny", settings)
    process.close()
    with pytest.raises(RunnerError, match="closed"):
        process.load()


def test_a_close_during_a_load_leaves_no_process(settings):
    """08 RUN-7, T2."""
    process = RunnerProcess("tiny", settings, options=ONE_THREAD)
    started = threading.Event()
    failed = []

    def load():
        try:
            process.load(lambda _: started.set())
        except RunnerError as error:
            failed.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    assert started.wait(30)
    process.close()
    thread.join(10)
    assert not thread.is_alive()
    assert failed
    assert gone(process.pid)


@pytest.mark.parametrize(
    ("name", "says", "error"),
    [
        ("absent", "absent", NotFoundError),
        ("no//name", "'no'", UnsupportedError),
        ("a" * 300, "aaa", LoadError),
    ],
)
def test_a_load_that_fails_says_why(settings, name, says, error):
    """05 LOD-10, 08 RUN-4: the reason is in the state, and the process ends with it."""
    with RunnerProcess(name, settings) as process:
        with pytest.raises(error, match=says):
            process.load()
        assert wait_until(lambda: process.exited)
        assert says in process.last_error()


def test_the_reason_of_a_failed_load_is_the_last_error_line(settings, tmp_path):
    """05 LOD-10."""
    with run_runner(settings, tmp_path, "absent") as child:
        errors = child.stderr.read()
        assert child.wait(10) == 1
    assert "absent" in errors.splitlines()[-1]


def test_a_socket_path_that_cannot_be_is_one_line(settings, tmp_path):
    with run_runner(settings, tmp_path / ("x" * 120)) as child:
        (line,) = child.stderr.read().splitlines()
        assert child.wait(10) == 1
    assert line.startswith("Error: cannot listen at")


def test_a_bad_device_is_named(settings):
    """08 RUN-12."""
    with (
        RunnerProcess("tiny", settings, options=LoadOptions(device="cuda:7")) as process,
        pytest.raises(MachineError, match="cuda:7"),
    ):
        process.load()


def test_the_context_asked_for_is_the_context_loaded(settings):
    """05 PRP-8: never above the model's own maximum."""
    for asked, loaded in ((64, 64), (100_000, 512)):
        options = LoadOptions(num_ctx=asked, num_thread=1)
        with RunnerProcess("tiny", settings, options=options) as process:
            assert process.load().context_length == loaded


def run_runner(settings, folder, name="tiny"):
    return subprocess.Popen(
        [sys.executable, "-m", "forerun.runner", name, "--socket", str(folder / "socket")],
        env=settings.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_request_before_the_model_is_ready_is_a_503(settings, tmp_path):
    """05 HTP-3, PRP-1."""
    with run_runner(settings, tmp_path) as child:
        assert child.stdout.readline() == "listening\n"
        connection = Connection(tmp_path / "socket", lambda: "")
        with pytest.raises(BusyError, match="not loaded yet"):
            list(connection.complete(ask("a")))
        child.kill()


def test_a_runner_ends_when_its_parent_is_gone(settings, tmp_path):
    """08 RUN-14: within 5 s, and its socket goes with it."""
    folder = tmp_path / "private"
    folder.mkdir()
    with run_runner(settings, folder) as child:
        assert child.stdout.readline() == "listening\n"
        started = time.monotonic()
        child.stdin.close()  # what the death of a parent does to its pipes
        child.wait(10)
        assert time.monotonic() - started < 5
    assert not folder.exists()


def test_killing_the_parent_leaves_no_orphan(settings):
    """08 RUN-14, with a parent that really dies."""
    code = (
        "import sys, time\n"
        "from forerun.settings import Settings\n"
        "from forerun.scheduler.runners import RunnerProcess\n"
        "process = RunnerProcess('tiny', Settings.from_environment())\n"
        "process.load()\n"
        "print(process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env=settings.environment(), stdout=subprocess.PIPE, text=True
    )
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: gone(pid), 5)
