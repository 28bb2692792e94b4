"""A child process of ours: started, watched, killed and reaped (spec 08 RUN-3, RUN-6, RUN-14).

The child's standard input is a pipe that only this process holds, so it closes when this process
ends, however that happens; a child of ours takes that as its own end.
"""

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Protocol

from forerun.base.errors import LAST_WORDS, RunnerError
from forerun.base.logs import is_information

_TAIL_LINES = 20
_TAIL_LINE_LENGTH = 2000


class ChildSettings(Protocol):
    """What a composition root hands down: its settings, as variables for a child."""

    def environment(self) -> dict[str, str]: ...


class ChildProcess:
    """`python -m module` in a session of its own, so that Ctrl-C reaches its parent alone."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
    ) -> None:
        """The child's standard error goes on to ours, line by line; its end is kept for messages.

        Its last words are only kept: they are in the error that its owner raises, and who sees
        that need not see them twice.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        self._closing = threading.Lock()
        self._closed = False
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._pump = threading.Thread(target=self._pass_on_errors, daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exited(self) -> bool:
        return self._process.poll() is not None

    def killed(self, wait_s: float = 1.0) -> bool:
        """Whether a signal ends it within `wait_s`, such as that of a system without memory."""
        try:
            return self._process.wait(wait_s) < 0
        except subprocess.TimeoutExpired:
            return False

    def wait(self) -> None:
        """Until the child has ended and is reaped. May come from any thread."""
        self._process.wait()

    def send(self, line: bytes) -> None:
        """Write to the child's standard input. Raises RunnerError if it no longer reads."""
        try:
            _pipe(self._process.stdin).write(line)
            _pipe(self._process.stdin).flush()
        except OSError:
            raise RunnerError(f"the process ended: {self.last_error()}") from None

    def lines(self) -> Iterator[bytes]:
        """Lines of the child's standard output, until it ends or is closed."""
        try:
            while line := _pipe(self._process.stdout).readline():
                yield line
        except ValueError:  # what reading a closed file raises
            return

    def last_error(self, wait_s: float = 2.0) -> str:
        """Why the child ended, waiting for it while it does: what it said last, or the signal.

        A child that is killed has no time to say anything: what it said before is not the reason.
        """
        self._pump.join(wait_s)
        lines = [line.strip().removeprefix(LAST_WORDS) for line in list(self._tail)]
        ended_by = _signal_of(self._process)
        if ended_by == "SIGKILL":
            return "it was killed (SIGKILL), as it happens when memory runs out"
        last = next((line for line in reversed(lines) if line), "it said nothing")
        return f"{last} ({ended_by})" if ended_by else last

    def close(self) -> None:
        """Kill the child and all it started, wait until it is gone. Idempotent, also after a crash.

        Another thread that closes meanwhile waits too.
        """
        with self._closing:
            if self._closed:
                return
            self._kill()
            self._process.wait()
            self._pump.join()
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                with suppress(OSError):  # what was written to a dead child cannot be flushed
                    _pipe(pipe).close()
            self._closed = True

    def _kill(self) -> None:
        if os.name == "posix":
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # its session is its own
        else:
            self._process.kill()

    def _pass_on_errors(self) -> None:
        for data in _pipe(self._process.stderr):
            line = data.decode(errors="replace")
            if not is_information(line):
                self._tail.append(line[:_TAIL_LINE_LENGTH])
            if not line.startswith(LAST_WORDS):
                with suppress(OSError, ValueError):  # ours is closed, and the child must not block
                    sys.stderr.write(line)
                    sys.stderr.flush()


def _signal_of(process: subprocess.Popen[bytes], wait_s: float = 0.5) -> str:
    """The name of the signal that ended `process`; "" if none did or it is still there."""
    try:
        status = process.wait(wait_s)
    except subprocess.TimeoutExpired:
        return ""
    known = {number.value: number.name for number in signal.Signals}
    return known.get(-status, f"signal {-status}") if status < 0 else ""


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None, "all three streams of a child are pipes"
    return stream
