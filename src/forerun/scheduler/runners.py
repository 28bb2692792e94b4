"""A runner process: loaded, asked and closed by whoever started it (spec 08 RUN-4, RUN-6..9)."""

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from forerun.base.errors import (
    STATUS_TO_ERROR,
    BusyError,
    ForerunError,
    LoadError,
    MachineError,
    RunnerError,
)
from forerun.protocol.status import RunnerStatus
from forerun.scheduler.async_connection import AsyncConnection
from forerun.scheduler.connection import Connection
from forerun.scheduler.process import ChildProcess, ChildSettings

Report = Callable[[RunnerStatus], None]

LOAD_STALL_S = 300.0  # without progress

# How long a thread of PyTorch's team waits in a loop before it sleeps, in turns of that loop. The
# default is 300 times this, and halves a core's work when anything else runs (decision 0008).
SPIN = {"GOMP_SPINCOUNT": "1000"}

# CUDA's own order is by speed; the scheduler counts GPUs as their driver does.
GPU_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

MODULE = "forerun.runner"
SOCKET = "socket"
SOCKET_PATH_BYTES = 103  # macOS takes so many, Linux four more
SHORT_FOLDER = "/tmp"


class OutOfMemoryError(MachineError):
    """A load for which there was not enough memory; with more of it free it may work."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What is fixed when a model is loaded. None: the model's or the machine's default."""

    num_ctx: int | None = None
    num_thread: int | None = None
    device: str | None = None

    def arguments(self) -> list[str]:
        given = {
            "--num-ctx": self.num_ctx,
            "--num-thread": self.num_thread,
            "--device": self.device,
        }
        return [word for name, value in given.items() if value for word in (name, str(value))]


class RunnerProcess:
    """One model in a process of its own. `close` may come from any thread at any time."""

    def __init__(
        self,
        name: str,
        settings: ChildSettings,
        *,
        options: LoadOptions | None = None,
        module: str = MODULE,
    ) -> None:
        """`module` is what the process runs, called as `forerun.runner` is."""
        self._name = name
        self._settings = settings
        self._options = options or LoadOptions()
        self._module = module
        self._lock = threading.Lock()
        self._closed = False
        self._cut = False  # closed while it ran
        self._child: ChildProcess | None = None
        self._folder: Path | None = None

    def load(
        self, report: Report = lambda _: None, *, stall_s: float = LOAD_STALL_S
    ) -> RunnerStatus:
        """Start the process and wait until the model is ready, reporting every change of state.

        Raises what the runner's reason is an error of: LoadError, MachineError, OutOfMemoryError or
        NotFoundError; RunnerError if it ends or stalls. Called once; after `close` it refuses.
        """
        child, connection = self._spawn()
        if not _first_line(child, stall_s):
            raise RunnerError(f"the runner failed: {child.last_error()}")
        for status in connection.watch(stall_s):
            report(status)
            if status.state == "failed":
                raise _failure(status)
            if status.state == "ready":
                return status
        raise RunnerError(f"the runner failed: {child.last_error()}")

    @property
    def connection(self) -> Connection:
        """How to talk to the loaded model."""
        return Connection(self.socket, self.last_error)

    @property
    def async_connection(self) -> AsyncConnection:
        """The same for callers on an event loop."""

        async def failure() -> ForerunError:
            return await asyncio.to_thread(self.failure)

        return AsyncConnection(self.socket, failure)

    @property
    def socket(self) -> Path:
        """Where the process listens."""
        assert self._folder is not None, "load comes first"
        return self._folder / SOCKET

    @property
    def exited(self) -> bool:
        return self._child is not None and self._child.exited

    def killed(self) -> bool:
        """Whether a signal that is not ours has ended it, or does so in a moment."""
        return self._child is not None and not self._cut and self._child.killed()

    def when_ended(self, call: Callable[[], None]) -> None:
        """`call` in a thread of its own once the process has ended, however that happens."""
        assert self._child is not None, "load comes first"
        child = self._child

        def wait() -> None:
            child.wait()
            call()

        threading.Thread(target=wait, daemon=True).start()

    @property
    def pid(self) -> int:
        assert self._child is not None, "load comes first"
        return self._child.pid

    def close(self) -> None:
        """Kill the process and wait until it is gone: the next load may begin at once."""
        with self._lock:
            if self._child is not None:
                if not self._closed:
                    self._cut = not self._child.exited
                self._child.close()
            self._closed = True
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "RunnerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spawn(self) -> tuple[ChildProcess, Connection]:
        with self._lock:
            if self._closed:
                raise RunnerError("the runner was closed before it was loaded")
            assert self._child is None, "a runner is loaded once"
            self._folder = _private_folder()
            self._child = ChildProcess(
                self._module,
                [self._name, "--socket", str(self._folder / SOCKET), *self._options.arguments()],
                environment={**SPIN, **GPU_ORDER, **self._settings.environment()},
            )
            return self._child, self.connection

    def last_error(self) -> str:
        """Why the process ended: what it said last, waiting a moment for it to say it."""
        assert self._child is not None, "load comes first"
        return "it was unloaded" if self._cut else self._child.last_error()

    def failure(self) -> ForerunError:
        """What a caller is told whose answer broke off: unloading a model is no failure of it."""
        if self._cut:
            return BusyError("the model was unloaded before its answer was complete; ask again")
        return RunnerError(f"the runner failed: {self.last_error()}")


def _failure(status: RunnerStatus) -> ForerunError:
    """Why a load failed, as the error that has the runner's status."""
    if status.out_of_memory:
        return OutOfMemoryError(status.reason)
    if status.failure_status == LoadError.status:
        return LoadError(status.reason)
    return STATUS_TO_ERROR.get(status.failure_status, MachineError)(status.reason)


def _first_line(child: ChildProcess, stall_s: float) -> bytes:
    """What it says once it listens, b"" if it ends first. RunnerError if it does neither.

    Only a thread can wait for a pipe for a while everywhere; it ends when the child does.
    """
    said: list[bytes] = []
    waiting = threading.Thread(target=lambda: said.extend(islice(child.lines(), 1)), daemon=True)
    waiting.start()
    waiting.join(stall_s)
    if waiting.is_alive():
        raise RunnerError(f"the runner made no progress for {stall_s:g} s")
    return said[0] if said else b""


def _private_folder() -> Path:
    """A new folder of mode 0700 for a socket (05 HTP-1), whose path must not be long."""
    folder = Path(tempfile.mkdtemp(prefix="forerun-"))
    if len(os.fsencode(folder / SOCKET)) <= SOCKET_PATH_BYTES:
        return folder
    folder.rmdir()
    try:
        return Path(tempfile.mkdtemp(prefix="forerun-", dir=SHORT_FOLDER))
    except OSError:
        raise RunnerError(
            f"the temporary folder {str(folder.parent)!r} is too long for a socket's path; "
            "set TMPDIR to a shorter one"
        ) from None
