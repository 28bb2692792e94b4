"""A server on this machine that stands for hf.co: one repository, made of a folder's files."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Weights:
    """The weights that a hub is asked for: they wait until `let_go`."""

    def __init__(self) -> None:
        self._go = threading.Event()
        self._asked = threading.Semaphore(0)

    def ask(self) -> None:
        self._asked.release()
        self._go.wait()

    def wait_until_asked(self) -> None:
        assert self._asked.acquire(timeout=60)

    def was_asked_again(self) -> bool:
        return self._asked.acquire(blocking=False)

    def let_go(self) -> None:
        self._go.set()


@contextmanager
def hub(folder: Path, weights: Weights | None = None, *, missing: bool = False) -> Iterator[str]:
    """The address of a hub, for HF_ENDPOINT, that has `folder` under every repository's name.

    With `weights` the contents of safetensors files wait for a sign; `missing`: it has nothing.
    """

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            if weights is not None and ".safetensors" in self.path:
                weights.ask()
            data = self.answer()
            with suppress(OSError):  # whoever asked may be gone
                self.wfile.write(data)

        def answer(self) -> bytes:
            if missing:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return b""
            path = self.path.split("?")[0]
            data = page(folder) if path.startswith("/api/") else file_of(folder, path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", '"x"')
            self.end_headers()
            return data

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        if weights is not None:
            weights.let_go()
        server.shutdown()
        server.server_close()


def page(folder: Path) -> bytes:
    files = [
        {
            "rfilename": file.name,
            "size": file.stat().st_size,
            "blobId": hashlib.sha1(
                b"blob %d\0" % file.stat().st_size + file.read_bytes()
            ).hexdigest(),
        }
        for file in sorted(folder.iterdir())
    ]
    return json.dumps({"id": "org/name", "sha": COMMIT, "siblings": files}).encode()


def file_of(folder: Path, path: str) -> bytes:
    return (folder / path.rsplit("/", 1)[-1]).read_bytes()
