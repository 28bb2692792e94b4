"""What a runner's process is started with."""

from pathlib import Path

import pytest

from forerun.base.errors import ForerunError
from forerun.scheduler import runners
from forerun.scheduler.process import ChildProcess
from forerun.scheduler.runners import RunnerProcess


class Variables:
    """Settings that hand down these variables."""

    def __init__(self, **given: str) -> None:
        self._given = given

    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/bin", **self._given}


def started_with(settings: Variables, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of the runner's process, read from the system."""
    seen: dict[str, str] = {}

    class Watched(ChildProcess):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            text = Path(f"/proc/{self.pid}/environ").read_bytes().decode()
            seen.update(pair.split("=", 1) for pair in text.split("\0") if pair)

    monkeypatch.setattr(runners, "ChildProcess", Watched)
    with RunnerProcess("none", settings) as runner, pytest.raises(ForerunError):
        runner.load()
    return seen


def test_its_threads_soon_sleep_unless_the_user_says_otherwise(monkeypatch) -> None:
    """Decision 0008."""
    assert started_with(Variables(), monkeypatch)["GOMP_SPINCOUNT"] == "1000"
    stated = Variables(GOMP_SPINCOUNT="5")
    assert started_with(stated, monkeypatch)["GOMP_SPINCOUNT"] == "5"
