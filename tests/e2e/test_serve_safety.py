"""Strangers and malformed HTTP at a real server: issue 3 item 6, 08 ENV, 08 API-14, report E11."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import ollama
import openai
import pytest

from fixtures.server import Server, plain_server
from forerun.settings import Settings

LOCAL_PAGE = "http://localhost:3000"
OWN_PAGE = "https://app.example"
EVIL_PAGE = "https://evil.example"
KEY = "s3cret"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("store")
    return Settings.from_environment({"FORERUN_MODELS": str(folder)})


@pytest.fixture(scope="module")
def server(settings: Settings) -> Iterator[Server]:
    with plain_server(settings, FORERUN_ORIGINS=f"{OWN_PAGE},app://*") as running:
        yield running
        assert "Traceback" not in running.log


@pytest.fixture(scope="module")
def locked(settings: Settings) -> Iterator[Server]:
    with plain_server(settings, FORERUN_API_KEY=KEY) as running:
        yield running


class Reply:
    """What came back."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()


def ask(server: Server, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body or None, given)
        return Reply(connection.getresponse())


def raw(server: Server, data: bytes, *, end: bool = False) -> bytes:
    """What a server says to bytes, until it closes or has said nothing for a second."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(data)
        if end:
            connection.shutdown(socket.SHUT_WR)
        said = connection.recv(65536)
        connection.settimeout(0.3)
        try:
            while piece := connection.recv(65536):
                said += piece
        except (TimeoutError, ConnectionError):
            pass
        return said


def fine(server: Server) -> None:
    assert ask(server, "GET", "/api/version").status == 200


def test_a_name_that_was_rebound_to_this_machine_is_refused(server: Server) -> None:
    """DNS rebinding; the remedy is in the one line."""
    for path in ("/", "/api/version", "/v1/models", "/metrics", "/nothing"):
        reply = ask(server, "GET", path, Host="evil.example:11435")
        assert reply.status == 403
        found = json.loads(reply.body)["error"]
        text = found["message"] if path.startswith("/v1/") else found
        assert "'evil.example:11435'" in text
        assert "FORERUN_ORIGINS" in text
        assert "\n" not in text
        assert f"refused path={path} status=403" in server.log  # whoever exposes it can see it
    for host in ("localhost", "10.1.2.3:80", "app.example", socket.gethostname()):
        assert ask(server, "GET", "/api/version", Host=host).status == 200


def test_a_program_that_names_no_host_is_no_browser(server: Server) -> None:
    assert raw(server, b"GET /api/version HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "TRACE"])
def test_a_foreign_page_is_refused_whatever_it_does(server: Server, method: str) -> None:
    for origin in (EVIL_PAGE, "null", f"{OWN_PAGE}.evil.example"):
        reply = ask(server, method, "/api/version", Origin=origin)
        assert reply.status == 403
        assert "access-control-allow-origin" not in reply.headers
        if method != "HEAD":
            assert "FORERUN_ORIGINS" in json.loads(reply.body)["error"]


def test_two_origins_do_not_hide_one_another(server: Server) -> None:
    head = f"GET / HTTP/1.1\r\nhost: localhost\r\norigin: {LOCAL_PAGE}\r\norigin: {EVIL_PAGE}\r\n"
    assert raw(server, f"{head}\r\n".encode()).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize("origin", [LOCAL_PAGE, OWN_PAGE, "app://obsidian.md"])
def test_an_allowed_page_gets_its_headers(server: Server, origin: str) -> None:
    for path, status in (("/api/version", 200), ("/nothing", 404)):
        reply = ask(server, "GET", path, Origin=origin)
        assert reply.status == status
        assert reply.headers["access-control-allow-origin"] == origin
        assert reply.headers["vary"] == "Origin"
    assert "access-control-allow-origin" not in ask(server, "GET", "/").headers


def test_a_preflight_is_told_methods_headers_and_how_long(server: Server, locked: Server) -> None:
    """It carries no key, so none is asked of it."""
    wanted = {
        "Access_Control_Request_Method": "DELETE",
        "Access_Control_Request_Headers": "authorization,content-type,x-stainless-os",
        "Access_Control_Request_Private_Network": "true",
    }
    for running in (server, locked):
        reply = ask(running, "OPTIONS", "/api/delete", Origin=LOCAL_PAGE, **wanted)
        assert reply.status == 204
        assert reply.body == b""
        assert "DELETE" in reply.headers["access-control-allow-methods"]
        assert reply.headers["access-control-allow-headers"] == (
            "authorization,content-type,x-stainless-os"
        )
        assert reply.headers["access-control-allow-private-network"] == "true"
        assert int(reply.headers["access-control-max-age"]) > 0
        assert reply.headers["access-control-allow-origin"] == LOCAL_PAGE
    assert ask(server, "OPTIONS", "/api/delete", Origin=EVIL_PAGE, **wanted).status == 403


def test_without_the_key_only_the_greeting_is_answered(locked: Server) -> None:
    """08 API-1: whether a server is there is no secret."""
    assert ask(locked, "GET", "/").body == b"Ollama is running"
    assert ask(locked, "HEAD", "/").status == 200
    for method, path in (
        ("POST", "/"),
        ("GET", "/api/version"),
        ("GET", "/metrics"),
        ("POST", "/api/chat"),
        ("GET", "/nothing"),
    ):
        reply = ask(locked, method, path)
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"
        assert "Authorization: Bearer" in json.loads(reply.body)["error"]
    for header in ("", KEY, f"Basic {KEY}", f"Bearer {KEY}x", "Bearer s3cr\xe9t"):
        assert ask(locked, "GET", "/api/version", Authorization=header).status == 401
    assert ask(locked, "GET", "/api/version", Authorization=f"Bearer {KEY}").status == 200


def test_an_allowed_page_can_read_that_a_key_is_needed(locked: Server) -> None:
    reply = ask(locked, "GET", "/v1/models", Origin=LOCAL_PAGE)
    assert reply.status == 401
    assert reply.headers["access-control-allow-origin"] == LOCAL_PAGE
    assert json.loads(reply.body)["error"]["type"] == "authentication_error"


def test_the_official_clients_carry_the_key(locked: Server) -> None:
    url = f"{locked.url}/v1"
    with (
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
        assert list(client.models.list()) == []
    stranger = ollama.Client(host=locked.url)
    with pytest.raises(ollama.ResponseError) as caught:
        stranger.list()
    assert caught.value.status_code == 401
    friend = ollama.Client(host=locked.url, headers={"Authorization": f"Bearer {KEY}"})
    assert friend.list().models == []
    for each in (stranger, friend):
        each._client.close()


def test_a_body_that_says_it_is_too_large_is_refused_unread(server: Server) -> None:
    head = b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99000000\r\n\r\n"
    said = raw(server, head)
    assert said.startswith(b"HTTP/1.1 413")
    assert b"32.0 MB" in said
    fine(server)


def test_a_body_in_chunks_is_counted(server: Server) -> None:
    """And the client, which sends all of it before it listens, can read the refusal."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x.localhost\r\n"
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    said = raw(server, head + b"transfer-encoding: chunked\r\n\r\n" + 32 * chunk + b"0\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 413")
    assert b"invalid_request_error" in said
    fine(server)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 400_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 400_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nno colon\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /api/chat HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"SSH-2.0-OpenSSH\r\n\r\n",
    ],
)
def test_what_is_no_http_is_a_4xx_without_a_trace(server: Server, data: bytes) -> None:
    said = raw(server, data)
    assert said.startswith(b"HTTP/1.1 4"), said[:100]
    assert b"Traceback" not in said
    fine(server)


def test_a_client_that_leaves_within_its_body_is_no_fault(server: Server) -> None:
    """E11."""
    head = b"POST /api/chat HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head)
    fine(server)


@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
def test_nesting_without_end_is_a_400(server: Server, path: str) -> None:
    deep = b'{"model":"m","messages":' + b"[" * 200_000
    for body in (deep, b'{"model":"m","options":' + b'{"a":' * 100_000):
        reply = ask(server, "POST", path, body)
        assert reply.status == 400
        assert b"Traceback" not in reply.body


@pytest.mark.parametrize(
    "path",
    [
        "/../../../etc/passwd",
        "/api/../../etc/passwd",
        "/..%2f..%2f..%2fetc/passwd",
        "/v1/models/..%2f..%2f..%2fetc%2fpasswd",
        "/v1/models/%2e%2e",
        "/v1/models/a%00b",
        "/api/blobs/sha256:..%2f..%2fetc%2fpasswd",
        "//etc/passwd",
        "/api/show%0aX:%20y",
        "/%ff%fe",
    ],
)
def test_no_path_leads_out(server: Server, settings: Settings, path: str) -> None:
    for method in ("GET", "HEAD", "POST", "DELETE"):
        reply = ask(server, method, path)
        assert 400 <= reply.status < 500
        assert b"root:" not in reply.body
        assert str(settings.models).encode() not in reply.body


def test_methods_that_a_path_does_not_have(server: Server) -> None:
    """HEAD is GET without a body; TRACE echoes nothing."""
    head = ask(server, "HEAD", "/api/version")
    assert head.status == 200
    assert head.body == b""
    assert int(head.headers["content-length"]) > 0
    for method in ("OPTIONS", "TRACE", "PATCH", "BREW"):
        reply = ask(server, method, "/api/version", X_Secret="echo")
        assert reply.status == 405
        assert "GET" in reply.headers["allow"]
        assert b"it takes " in reply.body
        assert b"echo" not in reply.body


def test_a_flood_of_connections_is_a_503_and_goes_by(settings: Settings) -> None:
    """A request that waits has a connection, so there are as many and some more."""
    with plain_server(settings, FORERUN_MAX_QUEUE="1") as server, ExitStack() as flood:
        for _ in range(131):
            flood.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        assert ask(server, "GET", "/api/version").status == 503
        flood.close()
        fine(server)


def test_nothing_of_this_machine_is_in_an_answer(server: Server, settings: Settings) -> None:
    """Unknown models, in both dialects."""
    own = [str(settings.models), str(Path(__file__).parents[2]), "site-packages"]
    for path, body in (
        ("/api/show", b'{"model":"absent"}'),
        ("/api/chat", b'{"model":"absent","messages":[{"role":"user","content":"x"}]}'),
        ("/v1/chat/completions", b'{"model":"absent","messages":[{"role":"user","content":"x"}]}'),
        ("/v1/models/absent", b""),
    ):
        reply = ask(server, "POST" if body else "GET", path, body)
        assert reply.status == 404
        for text in own:
            assert text not in reply.body.decode()
