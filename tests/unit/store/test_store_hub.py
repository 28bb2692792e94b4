"""Pulls from hf.co (07 CAT-4), against a server on this machine that stands for the hub."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forerun.base.errors import ImportFailedError, RequestError
from forerun.store.catalogue import HubSource
from forerun.store.hub import (
    HubFile,
    Repository,
    fetch_repository,
    find_repository,
    select,
)
from forerun.store.inventory import INDEX, read_inventory

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHARD = "model-00001-of-00001.safetensors"
POOLING = "1_Pooling/config.json"
CLIENT = Path(__file__).with_name("hub_client.py")
SOURCES = Path(fetch_repository.__code__.co_filename).parents[2]


def _shard(size: int = 300_000) -> bytes:
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return (
        len(header).to_bytes(8, "little") + header + (bytes(range(251)) * (size // 251 + 1))[:size]
    )


@dataclass
class Hub:
    """What the server has, how it behaves, and what it was asked."""

    files: dict[str, bytes]
    port: int = 0
    status: int = 200  # of the repository's page
    code: str = ""  # the X-Error-Code that goes with it
    cut_after: int | None = None  # how many bytes of a shard are sent before the line goes dead
    damage: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)  # path and Range header
    tokens: dict[str, str | None] = field(default_factory=dict)  # by Host header


class Handler(BaseHTTPRequestHandler):
    """The three addresses of the hub that a pull uses."""

    hub: Hub

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.split("?")[0]
        self.hub.tokens[self.headers["Host"]] = self.headers["Authorization"]
        name = path.partition(f"/resolve/{COMMIT}/")[2] or path.rsplit("/", 1)[-1]
        if path.startswith("/api/models/"):
            self._page()
        elif path.startswith("/bulk/"):
            self._content(name, body)
        elif name.endswith(".safetensors"):
            # Large files lie on another host, which must not get the token.
            data = self.hub.files[name]
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.hub.port}/bulk/{name}")
            self.send_header("X-Linked-Size", str(len(data)))
            self.send_header("X-Linked-ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._content(name, body)

    def _page(self) -> None:
        if self.hub.status != 200:
            self.send_response(self.hub.status)
            self.send_header("X-Error-Code", self.hub.code)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        files = []
        for name, data in self.hub.files.items():
            git_id = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": git_id}
            if name.endswith(".safetensors"):
                sha256 = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": len(data), "pointerSize": 1}
            files.append(entry)
        page = json.dumps({"id": "o/n", "sha": COMMIT, "siblings": files}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def _content(self, name: str, body: bool) -> None:
        data = self.hub.files.get(name)
        if data is None:  # the hub's library asks for things of its own
            self.send_error(404)
            return
        wanted = self.headers["Range"] or ""
        start = int(wanted.removeprefix("bytes=").rstrip("-") or 0)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("ETag", '"x"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if not body:
            return
        self.hub.asked.append((name, wanted))
        if self.hub.damage:
            data = bytes(len(data))
        end = len(data) if self.hub.cut_after is None else start + self.hub.cut_after
        self.wfile.write(data[start:end])


@pytest.fixture
def hub() -> Iterator[Hub]:
    index = json.dumps({"weight_map": {"w": SHARD}}).encode()
    files = {
        "config.json": b'{"architectures":["Foo"]}',
        "tokenizer.json": b"{}",
        INDEX: index,
        SHARD: _shard(),
        "consolidated.safetensors": b"not read",
        "pytorch_model.bin": b"\x80pickle",
        "modeling.py": b"raise SystemExit",
        "onnx/config.json": b"{}",
        POOLING: b'{"pooling_mode_lasttoken": true}',
    }
    hub = Hub(files)
    handler = type("OfThisHub", (Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield hub
        server.shutdown()
        thread.join()


def _pull(hub: Hub, folder: Path, **environment: str) -> dict[str, object]:
    folder.mkdir(exist_ok=True)
    child = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("hub_client.py")),
            "o/n",
            "main",
            str(folder),
        ],
        env={
            **{k: v for k, v in os.environ.items() if "proxy" not in k.lower()},
            "PYTHONPATH": str(SOURCES),
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.port}",
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(folder.parent / "hf"),
            "HF_TOKEN": "hf_secret",
            **environment,
        },
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
    )
    outcome: dict[str, object] = json.loads(child.stdout)
    return outcome


def test_a_repository_is_fetched_without_pickles_and_code(hub: Hub, tmp_path: Path) -> None:
    """CAT-4, CAT-1: the revision becomes a commit; the token stays with the hub."""
    folder = tmp_path / "n"
    outcome = _pull(hub, folder)
    assert outcome["commit"] == COMMIT
    assert outcome["key"] == f"o--n--{COMMIT}"
    files = [file for file in folder.rglob("*") if file.is_file()]
    names = {file.relative_to(folder).as_posix() for file in files}
    assert names == {"config.json", "tokenizer.json", INDEX, SHARD, POOLING}
    assert (folder / POOLING).read_bytes() == hub.files[POOLING], "API-13"
    assert list(read_inventory(folder).tensors) == ["w"]
    total = sum(len(hub.files[name]) for name in names)
    heard = outcome["heard"]
    assert isinstance(heard, list)
    assert heard[-1] == [total, total]
    assert heard == sorted(heard)
    assert hub.tokens[f"127.0.0.1:{hub.port}"] == "Bearer hf_secret"
    assert hub.tokens[f"localhost:{hub.port}"] is None

    hub.asked.clear()
    assert _pull(hub, folder)["commit"] == COMMIT
    assert hub.asked == [], "CAT-5: what is there is not fetched again"

    (folder / "tokenizer.json").write_bytes(b"[]")
    _pull(hub, folder)
    assert [name for name, _ in hub.asked] == ["tokenizer.json"], "CAT-5: what decayed is"


def test_an_interrupted_file_is_continued(hub: Hub, tmp_path: Path) -> None:
    """CAT-4: kill at any byte; finished parts count, and so does half a file."""
    folder = tmp_path / "n"
    shard = hub.files[SHARD]
    (folder / ".partial").mkdir(parents=True)
    (folder / ".partial" / SHARD).write_bytes(shard[:123_456])
    (folder / ".partial" / "config.json").write_bytes(bytes(1000))  # longer than it should be
    outcome = _pull(hub, folder)
    assert outcome["commit"] == COMMIT
    assert (SHARD, "bytes=123456-") in hub.asked
    assert (folder / SHARD).read_bytes() == shard
    assert (folder / "config.json").read_bytes() == hub.files["config.json"]


def test_a_line_that_breaks_is_taken_up_where_it_broke(hub: Hub, tmp_path: Path) -> None:
    """CAT-4."""
    hub.files[SHARD] = _shard(15 << 20)  # the hub's library writes ten MiB at a time
    hub.cut_after = 12 << 20
    outcome = _pull(hub, tmp_path / "n")
    assert outcome["commit"] == COMMIT
    asked = [wanted for name, wanted in hub.asked if name == SHARD]
    assert asked == ["", f"bytes={10 << 20}-"]
    assert (tmp_path / "n" / SHARD).read_bytes() == hub.files[SHARD]


def test_what_comes_damaged_is_not_kept(hub: Hub, tmp_path: Path) -> None:
    """CAT-4, CAT-5: every file is compared with the hub's digest of it."""
    hub.damage = True
    outcome = _pull(hub, tmp_path / "n")
    assert outcome["error"] == "ImportFailedError"
    assert "came damaged" in str(outcome["message"])
    hub.damage = False
    assert _pull(hub, tmp_path / "n")["commit"] == COMMIT


@pytest.mark.parametrize(
    ("status", "code", "error", "message"),
    [
        (403, "GatedRepo", "RequestError", "hf.co/o/n is gated: accept its terms"),
        (404, "RepoNotFound", "NotFoundError", "hf.co/o/n is not there, or is private"),
        (404, "RevisionNotFound", "NotFoundError", "hf.co/o/n has no such revision"),
        (418, "", "ImportFailedError", "cannot fetch hf.co/o/n: the hub answered 418"),
    ],
)
def test_a_refusal_is_one_sentence_with_the_way_out(
    hub: Hub, tmp_path: Path, status: int, code: str, error: str, message: str
) -> None:
    """CAT-4: gated repositories say how to log in."""
    hub.status, hub.code = status, code
    outcome = _pull(hub, tmp_path / "n")
    assert outcome["error"] == error
    assert str(outcome["message"]).startswith(message)
    assert "\n" not in str(outcome["message"])
    if code in ("GatedRepo", "RepoNotFound"):
        assert "hf auth login" in str(outcome["message"])


def test_without_a_network_there_is_one_clear_sentence(hub: Hub, tmp_path: Path) -> None:
    """CAT-4: nobody listens at the address."""
    outcome = _pull(hub, tmp_path / "n", HF_ENDPOINT="http://127.0.0.1:1")
    assert outcome["error"] == "ImportFailedError"
    assert str(outcome["message"]).startswith("cannot fetch hf.co/o/n (")
    assert "check the network and pull again" in str(outcome["message"])
    assert "\n" not in str(outcome["message"])


def test_offline_mode_is_named() -> None:
    """CAT-4: tests run with HF_HUB_OFFLINE set, so this needs no child."""
    with pytest.raises(ImportFailedError, match="HF_HUB_OFFLINE is set"):
        find_repository(HubSource("o/n", "main"))


@pytest.mark.parametrize("name", ["o/a--b", "o/a..b", "o/" + "n" * 100, "o/n-"])
def test_a_name_that_the_hub_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(RequestError, match="cannot be a repository"):
        find_repository(HubSource(name, "main"))


@pytest.mark.parametrize(
    ("names", "index", "wanted"),
    [
        (
            ["config.json", "model.safetensors", "README.md", "tokenizer.model", "a.bin", "a.pt"],
            None,
            ["config.json", "tokenizer.model", "model.safetensors"],
        ),
        (
            ["config.json", "model-1.safetensors", "consolidated.safetensors", "x.gguf"],
            None,
            ["config.json", "model-1.safetensors"],
        ),
        (
            [INDEX, "pytorch_model.bin.index.json", "shard.safetensors", "model.safetensors"],
            {"w": "shard.safetensors"},
            [INDEX, "shard.safetensors"],
        ),
        (
            ["chat_template.jinja", "other.jinja", "merges.txt", "vocab.txt", "notes.txt"],
            None,
            ["chat_template.jinja", "merges.txt", "vocab.txt"],
        ),
        (
            ["../config.json", "a/config.json", ".json", "a\\b.json", "-x.json", "x.json\n"],
            None,
            [],
        ),
        (
            [
                "config.json",
                "1_Pooling/config.json",
                "2_Dense/config.json",
                "x1_Pooling/config.json",
            ],
            None,
            ["1_Pooling/config.json", "config.json"],
        ),
        (["../1_Pooling/config.json", "a/1_Pooling/config.json", "1_Pooling/x.json"], None, []),
        (["model.py", "model.safetensors.py", "config.json.pkl", "model.pickle"], None, []),
    ],
)
def test_files_are_chosen_by_name(
    names: list[str], index: dict[str, str] | None, wanted: list[str]
) -> None:
    """CAT-4: never pickle, never code, never a path."""
    assert select(names, index) == wanted


@pytest.mark.parametrize(
    ("names", "only", "message"),
    [
        (["config.json", "model.gguf"], (), "no config.json with safetensors weights"),
        (["model.safetensors"], (), "no config.json with safetensors weights"),
        (["config.json"], ("config.json", "model.safetensors"), "has no 'model.safetensors'"),
        (["config.json", "../m.safetensors"], ("config.json", "../m.safetensors"), "has no"),
    ],
)
def test_a_repository_that_is_no_model_is_said_to_be_none(
    tmp_path: Path, names: list[str], only: tuple[str, ...], message: str
) -> None:
    """CAT-4, CAT-2: known before anything is fetched."""
    files = tuple(HubFile(name, 1, None, None) for name in names)
    with pytest.raises(RequestError, match=message):
        fetch_repository(Repository("o/n", COMMIT, files), tmp_path, only=only)
    assert list(tmp_path.iterdir()) == []


def test_a_file_too_large_for_plain_http_says_what_to_use(tmp_path: Path) -> None:
    files = (
        HubFile("config.json", 0, None, None),
        HubFile("model.safetensors", 10**11, None, None),
    )
    (tmp_path / "config.json").touch()
    with pytest.raises(ImportFailedError, match="larger than 50 GB"):
        fetch_repository(Repository("o/n", COMMIT, files), tmp_path)
