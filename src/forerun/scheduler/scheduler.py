"""Which models are loaded: loads on demand, leases to requests, unloads when idle (spec 08 SCH).

Everything here runs on one event loop, so between two awaits nothing changes; starting, loading
and killing processes happen in threads.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from forerun.base.errors import BusyError
from forerun.protocol.status import RunnerStatus
from forerun.scheduler.async_connection import AsyncConnection
from forerun.scheduler.importing import ChildSettings
from forerun.scheduler.runners import MODULE, LoadOptions, RunnerProcess
from forerun.store.blobs import Digest
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel

Report = Callable[[RunnerStatus], None]


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What the scheduler is told by its composition root."""

    keep_alive_s: float = 300.0  # of a model whose requests do not say; infinite: for ever
    max_queue: int = 512  # requests without a turn
    max_loaded: int | None = None
    load_stall_s: float = 300.0  # longest load without progress
    gpu_overhead: int = 0  # bytes kept free on each GPU


@dataclass(frozen=True, slots=True)
class Resident:
    """A loaded model, as `ps` shows it. `expires_at` is seconds since the epoch, None: never."""

    name: ModelName
    model: StoredModel
    status: RunnerStatus
    expires_at: float | None
    device: str  # cpu or cuda:N
    active: int  # leases


@dataclass(slots=True)
class Lease:
    """One request's hold on a loaded model: it is not unloaded before the lease ends."""

    model: StoredModel
    connection: AsyncConnection
    status: RunnerStatus  # when it became ready
    load_s: float  # what this request waited for a load; 0 if the model was there
    _started: Callable[[], None] = field(repr=False)

    def started(self) -> None:
        """The request has its turn on the device: it no longer counts as waiting (SCH-1)."""
        self._started()


class Scheduler:
    """Made and used on one event loop; `close` ends every process."""

    def __init__(
        self,
        store: Store,
        settings: ChildSettings,
        limits: SchedulerLimits | None = None,
        *,
        module: str = MODULE,
    ) -> None:
        """`settings` are handed to the processes of the models, which run `module`."""
        self._store = store
        self._settings = settings
        self._limits = limits or SchedulerLimits()
        self._module = module
        self._loading = asyncio.Lock()
        self._loaded: dict[Digest, _Loaded] = {}
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """Requests without a turn: for a load, or for the device."""
        return self._waiting

    @asynccontextmanager
    async def lease(
        self,
        name: ModelName,
        options: LoadOptions,
        *,
        keep_alive_s: float | None = None,
        report: Report = lambda _: None,
    ) -> AsyncIterator[Lease]:
        """The loaded model `name`, loading or waiting as needed; cancelling the wait is safe.

        keep_alive_s  how long the model stays once idle; None: as the last request that said so
        report        hears the progress of a load that this request waits for

        Raises NotFoundError, BusyError when the queue is full, LoadError or RunnerError.
        """
        model = self._store.get(name)
        if self._waiting >= self._limits.max_queue:
            raise BusyError(
                "server busy, please try again: maximum pending requests exceeded; "
                "FORERUN_MAX_QUEUE sets it"
            )
        self._waiting += 1
        turn = _Turn(self)
        try:
            started = time.monotonic()
            async with self._loading:
                loaded = self._loaded.get(model.digest)
                fresh = loaded is None or loaded.process.exited
                if loaded is None or loaded.process.exited:
                    process = RunnerProcess(
                        str(name), self._settings, options=options, module=self._module
                    )
                    status = await asyncio.to_thread(
                        process.load, report, stall_s=self._limits.load_stall_s
                    )
                    loaded = self._loaded[model.digest] = _Loaded(name, model, process, status)
            load_s = time.monotonic() - started if fresh else 0.0
            loaded.active += 1
            try:
                yield Lease(model, loaded.connection, loaded.status, load_s, turn.end)
            finally:
                loaded.active -= 1
        finally:
            turn.end()

    async def residents(self) -> list[Resident]:
        """Loaded models with fresh figures (RUN-5)."""
        return [
            Resident(each.name, each.model, each.status, None, "cpu", each.active)
            for each in self._loaded.values()
        ]

    async def unload(self, name: ModelName) -> bool:
        """Unload a model; whether it was loaded. Answers under way get a grace, then are cut."""
        loaded = self._loaded.pop(self._store.get(name).digest, None)
        if loaded is not None:
            await asyncio.to_thread(loaded.process.close)
        return loaded is not None

    async def forget(self, digest: Digest) -> None:
        """The model is no longer in the store: unload it once idle."""
        loaded = self._loaded.pop(digest, None)
        if loaded is not None:
            await asyncio.to_thread(loaded.process.close)

    async def close(self) -> None:
        """End every process and wait until they are gone; later leases are refused. Idempotent."""
        for loaded in self._loaded.values():
            await asyncio.to_thread(loaded.process.close)
        self._loaded.clear()


class _Turn:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ended = False

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._scheduler._waiting -= 1


@dataclass(slots=True)
class _Loaded:
    name: ModelName
    model: StoredModel
    process: RunnerProcess
    status: RunnerStatus
    active: int = 0

    @property
    def connection(self) -> AsyncConnection:
        async def last_error() -> str:
            return await asyncio.to_thread(self.process.last_error)

        return AsyncConnection(self.process.socket, last_error)
