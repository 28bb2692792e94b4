"""The device thread: the one thread in which all of torch runs, job after job (spec 05 THR).

This module does not import torch; the thread does, so that a process can open its socket first.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from forerun.base.errors import ForerunError, one_line
from forerun.base.logs import logger

T = TypeVar("T")

log = logger(__name__)


class DeviceThread:
    """Runs submitted work in order of arrival, in inference mode."""

    def __init__(
        self,
        *,
        threads: int | None = None,
        on_lost: Callable[[BaseException], None] | None = None,
    ) -> None:
        """`threads`: CPU threads of torch, None for its own choice (physical cores).

        `on_lost` is called in the thread when the device has failed for good (THR-4).
        """
        self._threads = threads
        self._on_lost = on_lost
        self._queue: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._main, name="forerun-device", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Run `work` after everything submitted before it.

        The future raises what `work` raised, with the trace of this thread (THR-3). After `close`
        it is a ForerunError.
        """
        task = _Task(work)
        with self._lock:
            if self._closed:
                raise ForerunError("the model is closed; load it again")
            self._queue.put(task)
        return task.future

    def close(self) -> None:
        """Refuse new work, finish what was submitted, wait for the end. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        if threading.current_thread() is not self._thread:  # a finalizer may run anywhere
            self._thread.join()

    def _main(self) -> None:
        import torch

        if self._threads is not None:
            torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while (task := self._queue.get()) is not None:
                error = task.run()
                if isinstance(error, torch.AcceleratorError):
                    log.error("the device is lost: %s", one_line(error))
                    if self._on_lost is not None:
                        self._on_lost(error)
                del task, error  # waiting for the next one must not keep this one's tensors


class _Queued(Protocol):
    def run(self) -> BaseException | None: ...


class _Task(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.future: Future[T] = Future()

    def run(self) -> BaseException | None:
        if not self.future.set_running_or_notify_cancel():
            return None
        try:
            value = self._work()
        except BaseException as error:  # noqa: BLE001 - the job border: whoever waits gets it
            self.future.set_exception(error)
            return error
        self.future.set_result(value)
        return None
