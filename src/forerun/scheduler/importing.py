"""Runs an importer process over one pull or create and passes on what it reports."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress

from forerun.base.errors import ImportFailedError, RunnerError, error_for
from forerun.protocol.codec import decode_import_event, encode_line
from forerun.protocol.events import Failed
from forerun.protocol.imports import Imported, ImportRequest, ImportStatus
from forerun.scheduler.process import ChildProcess, ChildSettings

MODULE = "forerun.importer"

Step = ImportStatus | Imported


def run_import(
    request: ImportRequest, settings: ChildSettings
) -> Generator[ImportStatus | Imported, None, None]:
    """The importer's progress, the last event `Imported`. A failure is raised.

    Closing the generator kills the importer; the same request continues where it stopped.
    """
    process = ImportProcess(request, settings)
    try:
        yield from process.steps()
    finally:
        process.close()


async def follow_import(
    request: ImportRequest, settings: ChildSettings
) -> AsyncGenerator[ImportStatus | Imported, None]:
    """`run_import` for an event loop, which it does not block. Closed or cancelled, it kills too.

    The process is gone when it ends.
    """
    process = ImportProcess(request, settings)
    loop = asyncio.get_running_loop()
    steps: asyncio.Queue[Step | Exception] = asyncio.Queue()

    def hand_over(step: Step | Exception) -> None:
        with suppress(RuntimeError):  # the loop ended first
            loop.call_soon_threadsafe(steps.put_nowait, step)

    reader = threading.Thread(target=_read, args=(process, hand_over), daemon=True)
    reader.start()
    try:
        while True:
            step = await steps.get()
            if isinstance(step, Exception):
                raise step
            yield step
            if isinstance(step, Imported):
                return
    finally:
        await asyncio.shield(asyncio.to_thread(_end, process, reader))


def _read(process: "ImportProcess", hand_over: Callable[[Step | Exception], None]) -> None:
    try:
        for step in process.steps():
            hand_over(step)
    except Exception as error:  # noqa: BLE001 - the border of a thread; raised on the loop
        hand_over(error)


def _end(process: "ImportProcess", reader: threading.Thread) -> None:
    process.close()
    reader.join()


class ImportProcess:
    """One importer. `close` may come from any thread at any time, also before the process."""

    def __init__(self, request: ImportRequest, settings: ChildSettings) -> None:
        self._request = request
        self._settings = settings
        self._lock = threading.Lock()
        self._closed = False
        self._child: ChildProcess | None = None

    def steps(self) -> Generator[ImportStatus | Imported, None, None]:
        """Start the process, once, and pass on what it reports."""
        child = self._started()
        try:
            child.send(encode_line(self._request))
            for line in child.lines():
                event = decode_import_event(line)
                if isinstance(event, Failed):
                    raise error_for(event.status, event.message)
                yield event
                if isinstance(event, Imported):
                    return
            raise ImportFailedError(f"the importer failed: {child.last_error()}")
        except RunnerError as error:
            raise ImportFailedError(f"the importer failed: {error}") from None

    def close(self) -> None:
        """Kill the process and wait until it is gone. Idempotent."""
        with self._lock:
            self._closed = True
        if self._child is not None:
            self._child.close()

    def _started(self) -> ChildProcess:
        with self._lock:
            if self._closed:
                raise ImportFailedError("the import was stopped before it began")
            environment = self._settings.environment()
            self._child = ChildProcess(MODULE, (), environment=environment)
            return self._child
