"""Models fetched by the server: /api/pull and /api/push (08 API-4, API-14; 07 CAT-1, CAT-4, CAT-5).

The hub is a server of the tests' own; each test has a store of its own.
"""

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import ollama
import pytest

from fixtures.server import Server, alive, children, plain_server
from fixtures.tiny import tiny_folder
from fixtures.waiting import wait_until
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store
from unit.importer.local_hub import COMMIT, Weights, hub

NAME = "hf.co/org/name"
ONLINE = {"HF_HUB_OFFLINE": "0"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("repository") / "name", "llama")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def settings(store: Store) -> Settings:
    return Settings.from_environment({"FORERUN_MODELS": str(store.folders.root)})


@pytest.fixture
def weights() -> Weights:
    return Weights()


@pytest.fixture
def server(settings: Settings, repository: Path, weights: Weights) -> Iterator[Server]:
    """Its hub gives the weights away once it is told to."""
    with (
        hub(repository, weights) as address,
        plain_server(settings, HF_ENDPOINT=address, **ONLINE) as server,
    ):
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[ollama.Client]:
    """Of one test, as its server is."""
    with ollama.Client(host=server.url) as client:
        yield client


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that nobody needs a hub for."""
    root = str(tmp_path_factory.mktemp("lonely"))
    with plain_server(Settings.from_environment({"FORERUN_MODELS": root})) as server:
        yield server


def test_a_repository_is_pulled_with_progress(
    client: ollama.Client, store: Store, weights: Weights
) -> None:
    """08 API-4, 07 CAT-4: bytes are counted to the end, each step under a digest of its own."""
    weights.let_go()
    lines = list(client.pull(NAME, stream=True))
    assert lines[0].status == f"looking up {NAME}"
    assert lines[-1].status == "success"
    steps = {line.status: line for line in lines if line.total}
    assert list(steps) == [f"fetching {NAME}", "converting tensors"]
    assert all(line.completed == line.total for line in steps.values())
    assert len({line.digest for line in steps.values()}) == 2
    origin = store.get(ModelName.parse(NAME)).config.origin
    assert origin is not None
    assert origin.version == COMMIT
    again = list(client.pull(NAME, stream=True))
    assert [line.status for line in again if line.total][-1] == f"verifying {NAME}:latest"


def test_pulls_of_one_name_at_once_all_succeed(
    client: ollama.Client, weights: Weights, store: Store
) -> None:
    """08 API-4, 07 CAT-5, CAT-6: the weights are asked for once."""
    with ThreadPoolExecutor(3) as pool:
        pulls = [pool.submit(client.pull, NAME) for _ in range(3)]
        weights.wait_until_asked()
        weights.let_go()
        assert [pull.result().status for pull in pulls] == ["success"] * 3
    assert not weights.was_asked_again()
    assert store.damaged(ModelName.parse(NAME)) == ()
    assert list(store.folders.downloads.iterdir()) == []


def test_the_importer_ends_when_the_client_leaves(
    server: Server, store: Store, weights: Weights
) -> None:
    """08 API-4, RUN-13: the server lives on, and the next pull succeeds."""
    with httpx.stream("POST", f"{server.url}/api/pull", json={"model": NAME}) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines))["status"] == f"looking up {NAME}"
        weights.wait_until_asked()
        (importer,) = children(server.pid)
    assert wait_until(lambda: not alive(importer)), "the importer is gone"
    assert wait_until(lambda: children(server.pid) == []), "the importer is reaped"
    assert wait_until(lambda: "import cancelled model=hf.co/org/name:latest" in server.log), (
        "it is told"
    )
    assert store.entries() == []
    weights.let_go()
    with ollama.Client(host=server.url) as client:
        assert client.pull(NAME).status == "success"
    assert "imported model=hf.co/org/name:latest digest=sha256:" in server.log


def test_a_client_that_waits_for_one_word_may_leave_too(server: Server, weights: Weights) -> None:
    """08 API-4: without a stream, and before any head was sent."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/api/pull", json.dumps({"model": NAME, "stream": False}))
    weights.wait_until_asked()
    (importer,) = children(server.pid)
    connection.close()
    assert wait_until(lambda: not alive(importer)), "the importer is gone"


def test_a_server_that_ends_takes_its_importer_with_it(
    server: Server, store: Store, weights: Weights
) -> None:
    """08 RUN-13, RUN-14: no orphan, no half model."""
    with ThreadPoolExecutor(1) as pool:
        pull = pool.submit(httpx.post, f"{server.url}/api/pull", json={"model": NAME}, timeout=60)
        weights.wait_until_asked()
        (importer,) = children(server.pid)
        server.kill()
        assert wait_until(lambda: not alive(importer)), "the importer is gone"
        assert pull.exception() is not None
    assert store.entries() == []


def test_a_server_that_is_told_to_end_ends_its_imports(
    server: Server, store: Store, weights: Weights
) -> None:
    """08 RUN-13: in order and in time, without a model."""
    with ThreadPoolExecutor(1) as pool:
        pull = pool.submit(httpx.post, f"{server.url}/api/pull", json={"model": NAME}, timeout=60)
        weights.wait_until_asked()
        (importer,) = children(server.pid)
        assert server.stop() == 0
        assert not alive(importer)
        pull.exception()
    assert store.entries() == []
    assert "Traceback" not in server.log, server.log


@pytest.mark.parametrize(
    ("model", "status", "named"),
    [
        ("absent", 404, "model 'absent:latest' not found"),
        ("example.com/a/b", 501, "example.com"),
        ("a b", 400, "'a b'"),
        ("hf.co/only", 400, "hf.co/ORG/NAME"),
    ],
)
@pytest.mark.parametrize("stream", [True, False, None])
def test_a_name_that_cannot_be_pulled_has_a_status(
    lonely: Server, model: str, status: int, named: str, stream: bool | None
) -> None:
    """08 API-4, API-14, 07 CAT-1: before any process is started; null is absent (E13)."""
    for field in ("model", "name"):
        body = {field: model, "stream": stream, "insecure": stream}
        answer = httpx.post(f"{lonely.url}/api/pull", json=body)
        assert (answer.status_code, named in answer.json()["error"]) == (status, True)


def test_a_repository_that_is_not_there_has_a_status(settings: Settings, tmp_path: Path) -> None:
    """08 API-14: also as a stream, whose head waits for the first bytes."""
    with (
        hub(tmp_path / "nothing", missing=True) as address,
        plain_server(settings, HF_ENDPOINT=address, **ONLINE) as server,
        ollama.Client(host=server.url) as client,
        pytest.raises(ollama.ResponseError) as raised,
    ):
        list(client.pull(NAME, stream=True))
    assert raised.value.status_code == 404


def test_push_says_why_not(lonely: Server) -> None:
    """08 API-4, 07 CAT-5: 501, with and without a stream."""
    with ollama.Client(host=lonely.url) as client:
        for stream in (True, False):
            with pytest.raises(ollama.ResponseError, match="publishes none") as raised:
                list(client.push("mine", stream=stream))
            assert raised.value.status_code == 501
