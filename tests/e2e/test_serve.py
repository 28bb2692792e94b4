"""`forerun serve` as a process: its start, its logs, its end. 08 ENV, RUN-1, API-1; issue 3."""

import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fixtures.scripted import CHILD_PATH, ScriptedSettings, scripted_store
from fixtures.server import Server, alive, children, scripted_server

STARTS_WITHIN_S = 30.0


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ScriptedSettings:
    return scripted_store(tmp_path_factory.mktemp("serve"))


def environment(store: Path, **variables: str) -> dict[str, str]:
    return {**os.environ, **CHILD_PATH, "FORERUN_MODELS": str(store), **variables}


@contextmanager
def serving(
    store: Path, *arguments: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The real command, and its first line; it is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "forerun.cli", "serve", *arguments],
        env=environment(store, **variables),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            yield process, process.stderr.readline()
        finally:
            process.kill()


def port_of(line: str) -> int:
    found = re.search(r":(\d+) store=", line)
    assert found is not None, line
    return int(found.group(1))


def get(port: int, path: str, host: str = "127.0.0.1") -> bytes:
    with closing(http.client.HTTPConnection(host, port, timeout=20)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read()


def refused(store: Path, *arguments: str, **variables: str) -> str:
    """The one line that a server ends with that does not start."""
    done = subprocess.run(
        [sys.executable, "-m", "forerun.cli", "serve", *arguments],
        env=environment(store, **variables),
        capture_output=True,
        text=True,
        timeout=STARTS_WITHIN_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_it_starts_at_once_without_torch_and_says_where(tmp_path: Path) -> None:
    """08 RUN-1, API-1: port 0 is one that the system chooses."""
    before = os.times()
    with serving(tmp_path, "--host", "127.0.0.1:0") as (process, line):
        port = port_of(line)
        assert "listening address=http://127.0.0.1:" in line
        assert f"store={tmp_path}" in line
        assert re.search(r"version=\d+\.\d+", line)
        assert get(port, "/") == b"Ollama is running"
        assert set(json.loads(get(port, "/api/version"))) == {"version", "forerun"}
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        found = re.search(r"Max open files +(\d+) +(\d+)", limits)
        assert found is not None
        assert int(found.group(1)) == min(int(found.group(2)), 65536)  # two files a request
        assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert "Traceback" not in process.communicate()[1]
    after = os.times()
    spent = after.children_user + after.children_system
    assert spent - before.children_user - before.children_system < 1.0


def test_the_environment_gives_the_address_and_the_flag_another(tmp_path: Path) -> None:
    """08 ENV: FORERUN_HOST. IPv6 too."""
    with serving(tmp_path, FORERUN_HOST="[::1]:0") as (_, line):
        assert "http://[::1]:" in line
        assert get(port_of(line), "/", host="::1") == b"Ollama is running"
    with serving(tmp_path, "--host", "localhost:0", FORERUN_HOST="[::1]:0") as (_, line):
        assert get(port_of(line), "/") == b"Ollama is running"


def test_beyond_this_machine_a_key_is_needed_or_a_decision(tmp_path: Path) -> None:
    """08 ENV: FORERUN_API_KEY; issue 3 item 6."""
    for address in ("0.0.0.0:0", "[::]:0", "192.0.2.1:0"):
        text = refused(tmp_path, "--host", address)
        assert address in text
        assert "FORERUN_API_KEY" in text
        assert "--without-key" in text
    with serving(tmp_path, "--host", "0.0.0.0:0", "--without-key") as (_, line):
        port = port_of(line)
        assert get(port, "/api/version").startswith(b'{"version"')
        listed = subprocess.run(  # whoever starts a server so finds it by the same variable
            [sys.executable, "-m", "forerun.cli", "ps"],
            env=environment(tmp_path, FORERUN_HOST=f"0.0.0.0:{port}"),
            capture_output=True,
            text=True,
            check=True,
        )
        assert listed.stdout.startswith("NAME")
    with serving(tmp_path, "--host", "0.0.0.0:0", FORERUN_API_KEY="k") as (_, line):
        assert b"needs its API key" in get(port_of(line), "/api/version")


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("192.0.2.1:80", "cannot listen"),
        ("no.such.name.invalid:80", "cannot listen"),
        ("a b", "a b"),
    ],
)
def test_an_address_that_is_none_of_ours_is_one_line(
    tmp_path: Path, address: str, named: str
) -> None:
    """08 ENV-1."""
    assert named in refused(tmp_path, "--host", address, "--without-key")


def test_of_two_servers_on_one_port_exactly_one_serves(tmp_path: Path) -> None:
    """Issue 3: started at the same moment."""
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "forerun.cli", "serve", "--host", f"127.0.0.1:{port}"]
    both = [
        subprocess.Popen(command, env=environment(tmp_path), stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        lines = [each.stderr.readline() for each in both if each.stderr is not None]
        loser, winner = sorted(both, key=lambda each: "Error" not in lines[both.index(each)])
        assert loser.wait(STARTS_WITHIN_S) == 1
        assert winner.poll() is None
        assert get(port, "/") == b"Ollama is running"
        error = next(line for line in lines if line.startswith("Error: "))
        assert f"127.0.0.1:{port}" in error
        assert "FORERUN_HOST" in error
    finally:
        for each in both:
            each.kill()
            each.communicate()


def test_logs_are_json_in_every_process_if_asked(tmp_path: Path) -> None:
    """08 ENV: FORERUN_LOG; --log-format reaches the runners."""
    settings = scripted_store(tmp_path)
    with scripted_server(settings, FORERUN_LOG="debug", FORERUN_LOG_FORMAT="json") as server:
        chat(server, "SAY:hello")
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"no http\r\n\r\n")
            assert connection.recv(100)
        assert server.stop() == 0
        entries = [json.loads(line) for line in server.log.splitlines()]
    loggers = {entry["logger"].partition(".")[0] for entry in entries}
    assert {"forerun", "uvicorn"} <= loggers
    assert any(entry["logger"].startswith("forerun.runner") for entry in entries)
    request = next(entry for entry in entries if entry["message"] == "request")
    assert request["generated_tokens"] == len("hello")
    assert any('"POST /api/chat' in entry["message"] for entry in entries)


def post(server: Server, body: dict[str, object]) -> http.client.HTTPResponse:
    """The answer of /api/chat, whatever its status."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{server.url}/api/chat", data, method="POST")
    opener = urllib.request.build_opener(Unexcited)
    response = opener.open(request, timeout=60)
    assert isinstance(response, http.client.HTTPResponse)
    return response


class Unexcited(urllib.request.HTTPErrorProcessor):
    """An error status is an answer like others."""

    def http_response(self, _request, response):
        return response


def chat(server: Server, text: str, *, model: str = "scripted") -> dict[str, object]:
    """A whole answer."""
    message = {"role": "user", "content": text}
    with post(server, {"model": model, "messages": [message], "stream": False}) as response:
        found: dict[str, object] = json.loads(response.read())
    return found


def stream(server: Server, text: str) -> http.client.HTTPResponse:
    """An answer of which the first piece has come."""
    message = {"role": "user", "content": text}
    response = post(server, {"model": "scripted", "messages": [message]})
    assert json.loads(response.readline())["done"] is False
    return response


def test_it_ends_in_order(settings: ScriptedSettings) -> None:
    """SIGTERM: short answers end, endless ones fail, every runner is reaped, exit 0."""
    with scripted_server(settings) as server:
        short, endless = (
            stream(server, "STEP_MS=60 SAY:0123456789"),
            stream(server, "ENDLESS TOKEN_MS=20 SAY:on and on "),
        )
        runners = server.runners()
        assert runners
        with short, endless, socket.create_connection(("127.0.0.1", server.port)) as half:
            half.sendall(b"POST /api/chat HTTP/1.1\r\nhost: a.localhost\r\n")
            half.sendall(b"content-length: 50\r\n\r\n{")  # and nothing more
            began = time.monotonic()
            assert server.stop(signal.SIGTERM) == 0
            assert time.monotonic() - began < 10
            assert "done" in json.loads(short.read().splitlines()[-1])
            assert "error" in json.loads(endless.read().splitlines()[-1])
        assert not [pid for pid in runners if alive(pid)]
        assert "Traceback" not in server.log


def test_a_second_ctrl_c_ends_it_at_once(settings: ScriptedSettings) -> None:
    with scripted_server(settings) as server, stream(server, "ENDLESS TOKEN_MS=20 SAY:on "):
        own = children(server.pid)
        os.kill(server.pid, signal.SIGINT)
        while "ending" not in server.log:
            time.sleep(0.02)
        began = time.monotonic()
        assert server.stop(signal.SIGINT) == 0
        assert time.monotonic() - began < 2
        assert own
        assert not [pid for pid in own if alive(pid)]
        assert "Traceback" not in server.log


def test_clients_that_leave_at_any_moment_wedge_nothing(settings: ScriptedSettings) -> None:
    """E11: 100 of them, then a normal request; health and figures tell the truth."""
    chance = random.Random(0)
    with scripted_server(settings) as server:
        for number in range(100):
            message = {"role": "user", "content": "STEP_MS=5 SAY:hello world"}
            body = json.dumps(
                {"model": "scripted", "messages": [message], "stream": number % 2 == 0}
            )
            head = f"POST /api/chat HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}"
            request = f"{head}\r\n\r\n{body}".encode()
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(request[: chance.choice([20, len(head), len(request) - 5, 999])])
                connection.settimeout(chance.choice([0.001, 0.02, 0.06]))
                with contextlib.suppress(TimeoutError):
                    connection.recv(chance.choice([1, 999]))
        message = chat(server, "SAY:still here")["message"]
        assert message == {"role": "assistant", "content": "still here"}
        assert json.loads(get(server.port, "/api/ps"))["models"]
        assert "forerun_waiting_requests 0.0" in get(server.port, "/metrics").decode()
        assert "Traceback" not in server.log


def test_metrics_count_what_was_answered(settings: ScriptedSettings) -> None:
    """Issue 3 item 7. Models that do not exist are no labels: a caller could make up thousands."""
    with scripted_server(settings) as server:
        assert "done" in chat(server, "SAY:hello")
        assert "done" in chat(server, "SAY:hello")
        assert "error" in chat(server, "x", model="made-up-by-a-caller")
        text = get(server.port, "/metrics").decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))

    def value(name: str, **labels: str) -> float:
        inner = ",".join(f'{key}="{text}"' for key, text in sorted(labels.items()))
        return float(values[f"{name}{{{inner}}}" if inner else name])

    one = "scripted:latest"
    assert value("forerun_requests_total", model=one, outcome="stop") == 2
    assert value("forerun_requests_total", model="none", outcome="error_404") == 1
    assert "made-up" not in text
    prompt = value("forerun_tokens_total", model=one, kind="prompt")
    assert value("forerun_tokens_total", model=one, kind="generated") == 2 * len("hello")
    assert value("forerun_tokens_total", model=one, kind="cached") == prompt / 2 - 1
    assert value("forerun_seconds_count", model=one, phase="load") == 1
    assert value("forerun_seconds_count", model=one, phase="first_token") == 2
    assert value("forerun_loaded_models") == 1
    assert value("forerun_waiting_requests") == 0
    assert value("forerun_memory_bytes", model=one, use="weights") > 0
    assert value("forerun_memory_bytes", model=one, use="device_total") > 0
