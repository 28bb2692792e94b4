"""Names come and go: /api/copy and /api/delete, and what is loaded (08 API-4, API-14)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest

from fixtures.server import Server, plain_server
from fixtures.tiny import tiny_store
from fixtures.waiting import wait_until
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("names")
    tiny_store(root)
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    with plain_server(Settings.from_environment({"FORERUN_MODELS": str(root)})) as server:
        yield server


@pytest.fixture
def store(root: Path) -> Store:
    return Store(root)


def names(client: ollama.Client) -> set[str | None]:
    return {each.model for each in client.list().models}


def test_a_copy_is_a_second_name(client: ollama.Client, server: Server, store: Store) -> None:
    """08 API-4: no blob is copied; one of them may go, and the other stays whole."""
    assert client.copy("tiny", "team/twin:v2").status == "success"
    twin = ModelName.parse("team/twin:v2")
    assert store.digest(twin) == store.digest(ModelName.parse("tiny"))
    assert client.copy("team/twin:v2", "team/twin:v2").status == "success"
    assert client.delete("team/twin:v2").status == "success"
    assert names(client) == {"tiny:latest"}
    assert "copied source=tiny:latest destination=team/twin:v2" in server.log
    assert "deleted model=team/twin:v2" in server.log
    assert store.damaged(ModelName.parse("tiny")) == ()


def test_delete_takes_what_only_it_named(client: ollama.Client, store: Store) -> None:
    """08 API-4, 07 CAT-6: shared blobs survive; `name` serves as `model`, null is absent."""
    client.create("other", from_="tiny", system="only the other one says this")
    digests = {blob.digest for blob in store.get(ModelName.parse("other")).manifest.blobs}
    own = digests - {blob.digest for blob in store.get(ModelName.parse("tiny")).manifest.blobs}
    assert len(own) == 1
    client.delete("other")
    assert [store.blobs.size(digest) for digest in own] == [None]
    assert store.damaged(ModelName.parse("tiny")) == ()


def test_a_damaged_model_can_be_deleted(server: Server, store: Store) -> None:
    """08 API-4: by `name`, with `model` null (E13)."""
    path = ModelName.parse("garbled").path(store.folders.manifests)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"?")
    body = {"model": None, "name": "garbled"}
    answer = httpx.request("DELETE", f"{server.url}/api/delete", json=body)
    assert (answer.status_code, answer.content, path.exists()) == (200, b"", False)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "named"),
    [
        ("DELETE", "delete", {"model": "absent"}, 404, "model 'absent:latest' not found"),
        ("DELETE", "delete", {"model": "../tiny"}, 400, "'../tiny'"),
        ("DELETE", "delete", {"model": "a\\b"}, 400, "'a"),
        ("DELETE", "delete", {}, 400, "model is missing"),
        ("DELETE", "delete", {"model": 5}, 400, "model"),
        ("POST", "copy", {"source": "absent", "destination": "b"}, 404, "absent"),
        ("POST", "copy", {"source": "tiny", "destination": "a b"}, 400, "'a b'"),
        ("POST", "copy", {"source": "tiny", "destination": "hf.co/a/b"}, 400, "repository"),
        ("POST", "copy", {"source": "/etc", "destination": "b"}, 400, "'/etc'"),
        ("POST", "copy", {"source": "tiny", "destination": None}, 400, "destination is missing"),
        ("POST", "copy", {"destination": "b"}, 400, "source is missing"),
        ("POST", "delete", {"model": "tiny"}, 405, "/api/delete"),
    ],
)
def test_what_cannot_be_done_says_so(
    server: Server,
    client: ollama.Client,
    method: str,
    path: str,
    body: dict[str, Any],
    status: int,
    named: str,
) -> None:
    """08 API-14, 07 CFG-3: and nothing has changed."""
    before = names(client)
    answer = httpx.request(method, f"{server.url}/api/{path}", json=body)
    assert (answer.status_code, named in answer.json()["error"]) == (status, True), answer.json()
    assert names(client) == before


def loaded(client: ollama.Client) -> set[str | None]:
    return {each.digest for each in client.ps().models}


def test_a_model_without_a_name_is_unloaded(client: ollama.Client, server: Server) -> None:
    """08 API-4: it stays loaded while another name stands for it, and when it is replaced it goes.

    A create in place of the last name is one way to lose it, and a delete the other.
    """
    client.copy("tiny", "one")
    client.create("one", from_="one", parameters={"top_k": 5})
    client.copy("one", "two")
    client.generate("one", "a", raw=True, options={"num_predict": 1})
    (runner,) = server.runners()
    client.delete("one")
    assert server.runners() == [runner]
    client.create("two", from_="two", parameters={"top_k": 6})
    assert wait_until(lambda: server.runners() == []), "the replaced model is unloaded"
    client.generate("two", "a", raw=True, options={"num_predict": 1})
    assert len(loaded(client)) == 1
    client.delete("two")
    assert wait_until(lambda: server.runners() == []), "the deleted model is unloaded"
