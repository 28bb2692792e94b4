"""Loads models one after another, for whoever waits for them (spec 08 SCH-1, SCH-6, SCH-8)."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from forerun.base.errors import BusyError, ForerunError, RunnerError, internal
from forerun.base.logs import event, logger
from forerun.protocol.status import RunnerStatus
from forerun.scheduler.devices import Devices
from forerun.scheduler.estimate import read_facts
from forerun.scheduler.lease import SchedulerLimits
from forerun.scheduler.load_job import LoadJob, Waiter
from forerun.scheduler.loaded import LoadedRunner, Place, Runner, RunnerFactory
from forerun.scheduler.residency import Residency
from forerun.scheduler.room import NobodyWaitsError, RoomMaker
from forerun.scheduler.runners import LoadOptions, OutOfMemoryError
from forerun.store.stored import StoredModel

log = logger(__name__)

ENDING = "the server is shutting down; try again once it runs"


class KilledError(RunnerError):
    """A runner died by a signal while it loaded, as it does where memory runs out."""


class Loader:
    """A queue of loads and the one task that works on it while there are any.

    A load whose last waiter leaves is finished, so that the request which is tried again finds the
    model; from then on the model is idle, and the first to be evicted. One that has not begun is
    skipped.
    """

    def __init__(
        self,
        residency: Residency,
        start: RunnerFactory,
        devices: Devices,
        limits: SchedulerLimits,
    ) -> None:
        self._residency = residency
        self._start_runner = start
        self._limits = limits
        self._rooms = RoomMaker(residency, devices, limits, self._serve_queued)
        self._queue: deque[LoadJob] = deque()
        self._current: LoadJob | None = None
        self._loading: tuple[StoredModel, Runner] | None = None
        self._aborted: Runner | None = None
        self._worker: asyncio.Task[None] | None = None
        self._closed = False

    async def hold(
        self, model: StoredModel, options: LoadOptions, waiter: Waiter
    ) -> tuple[LoadedRunner, bool]:
        """A runner held for the caller, who releases it; whether it was loaded meanwhile.

        Cancelling the wait leaves nothing held.
        """
        job = self._join(model, options)
        job.add(waiter)
        held = waiter.held
        try:
            return await held, job.loads
        except asyncio.CancelledError:
            if held.done() and not held.cancelled() and held.exception() is None:
                self._residency.release(held.result())
            self._residency.changes.tell()
            raise

    async def abort(self, matches: Callable[[StoredModel], bool]) -> bool:
        """End the load under way if its model matches; whether it does. Its waiters are told."""
        if self._loading is None or not matches(self._loading[0]):
            return False
        self._aborted = self._loading[1]
        await asyncio.to_thread(self._aborted.close)
        return True

    async def close(self) -> None:
        """Refuse everybody who waits, end the load under way, and return when all is still."""
        self._closed = True
        for job in (self._current, *self._queue):
            if job is not None:
                job.fail(BusyError(ENDING))
        self._queue.clear()
        self._residency.changes.tell()
        if self._loading is not None:
            await asyncio.to_thread(self._loading[1].close)
        if self._worker is not None:
            await asyncio.wait({self._worker})

    def _join(self, model: StoredModel, options: LoadOptions) -> LoadJob:
        """The load of that model which waits or is under way, or else a new one."""
        for job in (self._current, *self._queue):
            if job is not None and job.model.digest == model.digest and job.covers(options):
                return job
        job = LoadJob(model, options)
        self._queue.append(job)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return job

    async def _work(self) -> None:
        while self._queue:
            self._current = job = self._queue.popleft()
            try:
                await self._serve(job)
            finally:
                self._current = None

    async def _serve(self, job: LoadJob) -> None:
        """The border of a load: whatever goes wrong is told to everybody who waits for it."""
        try:
            runner = self._residency.find(job.model.digest, job.options) or await self._load(job)
        except NobodyWaitsError:
            return
        except ForerunError as error:
            job.fail(error)
        except Exception as error:
            log.exception("the load of %s failed", job.model.name)
            job.fail(internal(error))
        else:
            job.hand_out(runner, self._residency.hold)
            if not runner.active and runner.timer is None:
                self._residency.rest(runner)

    def _serve_queued(self) -> None:
        """Models that were about to leave stay: whoever waits for them need not wait for a load."""
        for job in list(self._queue):
            runner = self._residency.find(job.model.digest, job.options)
            if runner is not None:
                self._queue.remove(job)
                job.hand_out(runner, self._residency.hold)

    async def _load(self, job: LoadJob) -> LoadedRunner:
        facts = await asyncio.to_thread(read_facts, job.model)
        kept_s = await self._rooms.retire(job)
        place = await self._rooms.make(job, facts)
        try:
            return await self._start(job, place, kept_s)
        except (KilledError, OutOfMemoryError):
            if not await self._rooms.evict_idle(job):
                raise
        place = await self._rooms.make(job, facts)
        return await self._start(job, place, kept_s)

    async def _start(self, job: LoadJob, place: Place, kept_s: float | None) -> LoadedRunner:
        """`kept_s` is the keep-alive of the runner that this one replaces."""
        if self._closed:
            raise BusyError(ENDING)
        started = time.monotonic()
        options = LoadOptions(place.context, job.options.num_thread, place.told)
        process = self._start_runner(str(job.model.name), options)
        job.loads = True
        self._loading = job.model, process
        try:
            ready = await self._ready(job, process)
        finally:
            self._loading = None
        keep_alive_s = self._limits.keep_alive_s if kept_s is None else kept_s
        if job.keep_alive_s is not None:
            keep_alive_s = job.keep_alive_s
        runner = LoadedRunner(job.model, process, ready, place, keep_alive_s=keep_alive_s)
        self._residency.add(runner)
        event(
            log,
            "model loaded",
            model=str(job.model.name),
            seconds=time.monotonic() - started,
            memory=runner.reported,
            need=place.need,
            context=ready.context_length,
            device=place.device,
        )
        return runner

    async def _ready(self, job: LoadJob, process: Runner) -> RunnerStatus:
        """Run the load in a thread. If it fails or was ended, its process is gone on return."""
        loop = asyncio.get_running_loop()

        def tell(status: RunnerStatus) -> None:
            loop.call_soon_threadsafe(job.tell, status)

        try:
            ready = await asyncio.to_thread(process.load, tell, stall_s=self._limits.load_stall_s)
        except Exception as error:
            killed = await asyncio.to_thread(process.killed)
            await asyncio.to_thread(process.close)
            self._refuse_ended(process)
            if killed and isinstance(error, ForerunError):
                raise KilledError(str(error)) from None
            raise
        if self._closed or process is self._aborted:
            await asyncio.to_thread(process.close)
            self._refuse_ended(process)
        return ready

    def _refuse_ended(self, process: Runner) -> None:
        """Raises if it was us who ended the load."""
        if self._closed:
            raise BusyError(ENDING)
        if process is self._aborted:
            raise BusyError("the model was unloaded while it was loading; ask for it again")
