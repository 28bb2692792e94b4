"""How a child ended, and who is told: 08 SCH-6, RUN-8."""

import os
import signal
import threading
from pathlib import Path

import pytest

from forerun.base.errors import BusyError, RunnerError
from forerun.scheduler.process import ChildProcess
from forerun.scheduler.runners import RunnerProcess

TESTS = Path(__file__).parents[2]


class Children:
    """Settings under which a runner's module is found among the tests' own."""

    def environment(self):
        return {**os.environ, "PYTHONPATH": str(TESTS)}


@pytest.fixture
def child():
    started = []

    def start(mode):
        started.append(ChildProcess("fixtures.child", [mode], environment=Children().environment()))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_a_signal_is_told_from_an_exit(child):
    """08 SCH-6: only what is killed may have lacked memory."""
    killed, failed, running = child("hang"), child("fail"), child("hang")
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.killed(10)
    failed.wait()
    assert not failed.killed()
    assert not running.killed(0.01)


@pytest.fixture
def runner(child):
    """A runner's process that listens and never loads."""
    process = RunnerProcess("none", Children())
    process._child = child("hang")
    return process


def test_an_end_is_heard_of_without_asking(runner):
    """08 RUN-8."""
    ended = threading.Event()
    runner.when_ended(ended.set)
    assert not ended.wait(0.05)
    os.kill(runner.pid, signal.SIGKILL)
    assert ended.wait(10)
    assert runner.killed()
    assert runner.exited


def test_an_end_of_our_own_is_no_kill(runner):
    """08 SCH-6: and the reason that callers are given says whose it was."""
    runner.close()
    assert not runner.killed()
    assert runner.last_error() == "it was unloaded"
    assert isinstance(runner.failure(), BusyError)


def test_a_crash_stays_the_reason_after_the_process_is_closed(runner):
    """08 RUN-9."""
    os.kill(runner.pid, signal.SIGKILL)
    runner._child.wait()
    runner.close()
    assert runner.killed()
    assert runner.last_error() != "it was unloaded"
    assert isinstance(runner.failure(), RunnerError)
