"""An import followed on an event loop (08 RUN-13): the loop stays free, the process never stays."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from fixtures.server import alive, children
from forerun.base.errors import ImportFailedError, NotFoundError
from forerun.protocol.imports import Imported, ImportStatus, PullRequest
from forerun.scheduler import importing
from forerun.scheduler.importing import ImportProcess, follow_import

REQUEST = PullRequest(name="anything")


class Child:
    """Settings of a child that says `lines` and then waits for its end."""

    def __init__(self, folder: Path, lines: list[str], *, stays: bool = False) -> None:
        package = folder / "said"
        package.mkdir()
        (package / "__init__.py").touch()
        end = "sys.stdin.read()" if stays else ""
        text = (
            f"import sys\nsys.stdin.readline()\nprint(*{lines!r}, sep='\\n', flush=True)\n{end}\n"
        )
        (package / "importer.py").write_text(text)
        self._path = str(folder)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": self._path}


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "MODULE", "said.importer")


BEFORE: set[int] = set()  # such as the helper that multiprocessing keeps for the whole run


@pytest.fixture(autouse=True)
def before() -> None:
    BEFORE.clear()
    BEFORE.update(children(os.getpid()))


def started() -> list[int]:
    """Children that a test has started and not reaped."""
    return [pid for pid in children(os.getpid()) if pid not in BEFORE]


STATUS = '{"type":"status","status":"working"}'
IMPORTED = '{"type":"imported","name":"x","digest":"d"}'


async def followed(child: Child) -> list[ImportStatus | Imported]:
    return [step async for step in follow_import(REQUEST, child)]


def test_steps_come_in_order_and_the_process_is_gone(tmp_path: Path) -> None:
    """08 RUN-13: also one that would not end by itself."""
    steps = asyncio.run(followed(Child(tmp_path, [STATUS, IMPORTED], stays=True)))
    assert steps == [ImportStatus(status="working"), Imported(name="x", digest="d")]
    assert started() == []


def test_a_failure_is_raised_with_its_status(tmp_path: Path) -> None:
    """08 API-14."""
    failed = '{"type":"failed","status":404,"message":"no such model"}'
    with pytest.raises(NotFoundError, match="no such model"):
        asyncio.run(followed(Child(tmp_path, [STATUS, failed])))


def test_a_process_that_says_no_more_has_failed(tmp_path: Path) -> None:
    """08 RUN-9."""
    with pytest.raises(ImportFailedError, match="it said nothing"):
        asyncio.run(followed(Child(tmp_path, [STATUS])))


def test_the_loop_turns_while_the_process_works(tmp_path: Path) -> None:
    """08 RUN-13: nothing of an import blocks others; a cancelled one is killed and reaped."""

    async def run() -> None:
        steps: AsyncGenerator[ImportStatus | Imported, None]
        steps = follow_import(REQUEST, Child(tmp_path, [STATUS], stays=True))
        assert await anext(steps) == ImportStatus(status="working")
        (pid,) = started()
        waiting = asyncio.ensure_future(anext(steps))
        for _ in range(10):
            await asyncio.sleep(0)
        assert alive(pid)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not alive(pid)
        await steps.aclose()

    asyncio.run(run())
    assert started() == []


def test_what_was_stopped_does_not_begin(tmp_path: Path) -> None:
    """08 RUN-7: a close that comes before the start leaves no process behind."""
    process = ImportProcess(REQUEST, Child(tmp_path, [IMPORTED]))
    process.close()
    with pytest.raises(ImportFailedError, match="stopped"):
        next(process.steps())
    assert started() == []
