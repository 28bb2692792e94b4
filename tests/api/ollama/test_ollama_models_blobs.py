"""Files that clients send for a create: /api/blobs/:digest (08 API-3)."""

import hashlib
import http.client
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import ollama
import pytest

from fixtures.server import Server, plain_server
from fixtures.waiting import wait_until
from forerun.settings import Settings
from forerun.store.blobs import Digest
from forerun.store.store import Store

DATA = bytes(range(256)) * 5000  # more than one piece


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blobs")


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    with plain_server(Settings.from_environment({"FORERUN_MODELS": str(root)})) as server:
        yield server


@pytest.fixture
def store(root: Path) -> Store:
    return Store(root)


def url(server: Server, digest: object) -> str:
    return f"{server.url}/api/blobs/{digest}"


def files_of(store: Store) -> list[str]:
    if not store.folders.blobs.is_dir():
        return []
    return sorted(file.name for file in store.folders.blobs.iterdir())


def test_a_blob_is_sent_and_asked_for(server: Server, store: Store, tmp_path: Path) -> None:
    """08 API-3: 404 before and 200 after; the official client sends it in pieces of any size."""
    path = tmp_path / "weights"
    path.write_bytes(DATA)
    digest = Digest.of(DATA)
    assert httpx.head(url(server, digest)).status_code == 404
    with ollama.Client(host=server.url) as client:
        assert client.create_blob(path) == str(digest)
    assert httpx.head(url(server, digest)).status_code == 200
    assert (
        httpx.head(url(server, digest.file_name.upper().replace("SHA", "sha"))).status_code == 200
    )
    assert store.blobs.path(digest).read_bytes() == DATA
    again = httpx.post(url(server, digest), content=DATA)
    assert (again.status_code, again.content) == (201, b"")


def test_an_empty_blob_is_a_blob(server: Server) -> None:
    """08 API-3."""
    assert httpx.post(url(server, Digest.of(b""))).status_code == 201


def test_other_bytes_are_refused(server: Server, store: Store) -> None:
    """08 API-3: a wrong digest is a 400 and leaves nothing."""
    before = files_of(store)
    answer = httpx.post(url(server, Digest.of(b"promised")), content=b"sent")
    assert answer.status_code == 400
    assert str(Digest.of(b"sent")) in answer.json()["error"]
    assert files_of(store) == before


@pytest.mark.parametrize(
    "text", ["sha256:abc", "md5:" + "0" * 64, "0" * 64, "sha256:" + "g" * 64, "sha256:..%2f..%2fx"]
)
def test_what_is_no_digest_is_refused(server: Server, store: Store, text: str) -> None:
    """08 API-3, 07 CFG-3: 400 (or no such route), and nothing outside the store is looked at."""
    before = files_of(store)
    assert httpx.head(url(server, text)).status_code in (400, 404)
    answer = httpx.post(url(server, text), content=b"x")
    assert answer.status_code in (400, 404, 405)
    assert answer.json()["error"]
    assert files_of(store) == before


def test_an_upload_that_is_cut_off_leaves_nothing(server: Server, store: Store) -> None:
    """08 API-3: however much had come."""
    before = files_of(store)
    digest = Digest.of(b"never whole")
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = f"POST /api/blobs/{digest} HTTP/1.1\r\nHost: localhost\r\n"
        connection.sendall(f"{head}Content-Length: 4000000\r\n\r\n".encode() + bytes(3_000_000))
        assert wait_until(lambda: files_of(store) != before), "the upload is being written"
    assert wait_until(lambda: files_of(store) == before), "what was cut off is gone"
    assert httpx.head(url(server, digest)).status_code == 404


def test_one_blob_from_many_clients_at_once(server: Server, store: Store) -> None:
    """08 API-3: all are told that it is there, and it is."""
    data = os.urandom(3_000_000)
    with ThreadPoolExecutor(6) as pool:
        sent = pool.map(lambda _: httpx.post(url(server, Digest.of(data)), content=data), range(6))
        assert [answer.status_code for answer in sent] == [201] * 6
    assert store.blobs.path(Digest.of(data)).read_bytes() == data
    assert not [name for name in files_of(store) if name.startswith(".tmp-")]


def test_a_collection_spares_what_was_sent(server: Server, store: Store) -> None:
    """07 CAT-6: also one by another process."""
    digest = Digest.of(b"spared")
    httpx.post(url(server, digest), content=b"spared")
    store.collect()
    assert httpx.head(url(server, digest)).status_code == 200


def test_what_no_create_used_ends_with_its_server(tmp_path: Path) -> None:
    """08 API-3, 07 CAT-6: an orderly end leaves the store as small as it was."""
    digest, store = Digest.of(DATA), Store(tmp_path)
    with plain_server(Settings.from_environment({"FORERUN_MODELS": str(tmp_path)})) as server:
        assert httpx.post(url(server, digest), content=DATA).status_code == 201
        assert files_of(store) == [digest.file_name]
        assert server.stop() == 0
    assert files_of(store) == []


def test_memory_is_bounded(server: Server) -> None:
    """08 API-3: 200 MB pass through a few."""
    piece, count = os.urandom(1_000_000), 200
    hasher = hashlib.sha256()
    for _ in range(count):
        hasher.update(piece)
    before = peak_bytes(server.pid)
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request(
        "POST",
        f"/api/blobs/sha256:{hasher.hexdigest()}",
        body=(piece for _ in range(count)),
        headers={"Content-Length": str(count * len(piece))},
    )
    assert connection.getresponse().status == 201
    connection.close()
    assert peak_bytes(server.pid) - before < 40_000_000


def peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such line")
