"""The state of the load, set by the threads that load and watched by readers of the socket."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

from forerun.protocol.status import RunnerStatus


class LoadState:
    """From loading to ready or to failed, and never back (spec 05 HTP-2)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._status = RunnerStatus(state="loading", phase="starting")
        self._wakes: set[Callable[[], None]] = set()

    @property
    def status(self) -> RunnerStatus:
        return self._status

    def progress(self, phase: str, fraction: float) -> None:
        """`fraction` of the load, 0 to 1, is done, and `phase` is going on."""
        self._set(RunnerStatus(state="loading", phase=phase, progress=fraction))

    def ready(self, status: RunnerStatus) -> None:
        self._set(status)

    def fail(self, reason: str, *, status: int = 500, out_of_memory: bool = False) -> None:
        """`status` is that of the error."""
        self._set(
            RunnerStatus(
                state="failed", reason=reason, failure_status=status, out_of_memory=out_of_memory
            )
        )

    async def changes(self) -> AsyncIterator[RunnerStatus]:
        """The state now and at every change until the load is over; states in between may be
        left out.
        """
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(changed.set)

        with self._lock:
            self._wakes.add(wake)
        try:
            shown: RunnerStatus | None = None
            while shown is None or shown.state == "loading":
                if (status := self._status) is shown:
                    await changed.wait()
                    changed.clear()
                    continue
                yield status
                shown = status
        finally:
            with self._lock:
                self._wakes.discard(wake)

    def _set(self, status: RunnerStatus) -> None:
        with self._lock:
            assert self._status.state == "loading", "a load ends once"
            self._status = status
            wakes = list(self._wakes)
        for wake in wakes:
            wake()
