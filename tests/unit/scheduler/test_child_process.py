"""Children of ours: 08 RUN-3, RUN-6, RUN-8."""

import io
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from forerun.base.errors import RunnerError
from forerun.scheduler.process import ChildProcess

TESTS = Path(__file__).parents[2]


def child(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return ChildProcess("fixtures.child", arguments, environment=environment)


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def ended(pid):
    """Also of a process that nobody has reaped."""
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


def test_close_returns_when_the_process_is_gone_and_reaped():
    """08 RUN-6, T1: the next load begins right after `close` returns."""
    hanging = child("hang")
    assert next(hanging.lines()) == b"hanging\n"
    hanging.close()
    assert gone(hanging.pid)
    assert hanging.exited
    hanging.close()  # idempotent (RUN-8)


def test_close_takes_what_the_child_started_with_it():
    """RUN-13: no orphan, whoever holds the pipes by then."""
    parent = child("family")
    grandchild = int(next(parent.lines()))
    parent._process.wait()
    assert not ended(grandchild)
    parent.close()
    deadline = time.monotonic() + 5
    while not ended(grandchild) and time.monotonic() < deadline:
        time.sleep(0.01)  # it is not ours to wait for
    assert ended(grandchild)


def test_the_last_line_of_standard_error_is_kept_for_messages():
    """RUN-3."""
    failing = child("fail")
    assert failing.last_error() == "the weights are gone"
    failing.close()


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (signal.SIGKILL, "it was killed (SIGKILL), as it happens when memory runs out"),
        (signal.SIGTERM, "the last warning (SIGTERM)"),
    ],
)
def test_a_child_that_a_signal_ends_says_so(form, number, reason):
    """RUN-9: what it logged while all was well is no reason."""
    ending = child("chatter", form, str(int(number)))
    assert ending.last_error(20) == reason
    assert ending.killed()
    ending.close()


def test_what_a_child_says_goes_on_to_our_standard_error(capfd):
    """RUN-3: line by line, as it is."""
    failing = child("fail")
    failing.last_error()
    failing.close()
    assert capfd.readouterr().err == "a warning on the way\nthe weights are gone\n"


def test_last_words_are_kept_and_not_passed_on(capfd):
    """RUN-3: they are in the error that is raised, and a user reads them once."""
    ending = child("last_words")
    assert ending.last_error() == "the device is lost"
    ending.close()
    assert capfd.readouterr().err == "a warning on the way\n"


@pytest.mark.parametrize("broken", [io.UnsupportedOperation("no"), ValueError("closed")])
def test_a_child_is_read_although_nobody_hears_it(monkeypatch, broken):
    """RUN-3: our standard error may be closed; a full pipe would stop the child."""

    class Deaf(io.StringIO):
        def write(self, _):
            raise broken

    monkeypatch.setattr(sys, "stderr", Deaf())
    failing = child("fail")
    assert failing.last_error() == "the weights are gone"
    failing.close()


def test_lines_go_in_and_come_out():
    echo = child("echo")
    echo.send(b"one\n")
    assert next(echo.lines()) == b"one\n"
    echo.close()


def test_writing_to_a_process_that_ended_says_why():
    failing = child("fail")
    failing.last_error()
    with pytest.raises(RunnerError, match="the weights are gone"):
        for _ in range(10_000):  # until the pipe notices
            failing.send(b"x" * 4096)
    failing.close()


def test_lines_of_a_closed_child_end():
    hanging = child("hang")
    lines = hanging.lines()
    assert next(lines) == b"hanging\n"
    hanging.close()
    assert list(lines) == []


def test_a_child_ends_when_its_input_closes():
    """RUN-14: the pipe closes with the parent, however that dies."""
    echo = child("echo")
    echo._process.stdin.close()
    assert echo._process.wait(5) == 0
    echo.close()
