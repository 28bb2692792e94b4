"""Which models are loaded: loads on demand, leases to requests, unloads when idle (spec 08 SCH).

Everything here runs on one event loop, so between two awaits nothing changes; starting, loading
and killing processes happen in threads. `residency` holds what is loaded, `loader` is the queue of
loads, `room` decides where a model goes and who has to leave for it.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from forerun.base.errors import BusyError, ForerunError, NotFoundError
from forerun.protocol.cache import CacheReport
from forerun.scheduler.devices import Devices, SystemDevices
from forerun.scheduler.lease import Lease, Report, Resident, SchedulerLimits, Turns
from forerun.scheduler.load_job import Waiter
from forerun.scheduler.loaded import LoadedRunner, RunnerFactory
from forerun.scheduler.loader import ENDING, Loader
from forerun.scheduler.process import ChildSettings
from forerun.scheduler.residency import Residency
from forerun.scheduler.runners import MODULE, LoadOptions, RunnerProcess
from forerun.store.blobs import Digest
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel

__all__ = ["Lease", "Report", "Resident", "Scheduler", "SchedulerLimits"]


class Scheduler:
    """Made and used on one event loop; `close` ends every process."""

    def __init__(
        self,
        store: Store,
        settings: ChildSettings,
        limits: SchedulerLimits | None = None,
        *,
        module: str = MODULE,
        devices: Devices | None = None,
        start: RunnerFactory | None = None,
    ) -> None:
        """
        settings  are handed to the processes of the models
        module    is what these processes run, called as `forerun.runner` is
        devices   where models can go; None: this machine's
        start     makes a model's process; None: `RunnerProcess`
        """

        def process(name: str, options: LoadOptions) -> RunnerProcess:
            return RunnerProcess(name, settings, options=options, module=module)

        self._store = store
        self._limits = limits or SchedulerLimits()
        self._turns = Turns(self._limits.max_queue)
        self._residency = Residency()
        self._loader = Loader(
            self._residency,
            start or process,
            devices or SystemDevices(settings.environment()),
            self._limits,
        )
        self._closing: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Requests without a turn: for a load, or for the device."""
        return self._turns.waiting

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

        keep_alive_s  how long the model stays once idle; None: as the last request that said so,
                      which leaves a pinned model pinned, or else the limits' default
        report        hears the progress of a load that this request waits for

        Two names of one manifest share a process. Only a larger num_ctx or another device reloads
        a model, once it is idle. Raises NotFoundError, BusyError when the queue is full or the
        scheduler is closed, StoreError, LoadError or RunnerError.
        """
        self._refuse_if_closed()
        turn = self._turns.enter()
        try:
            model, runner, load_s = await self._hold(name, options, Waiter(report, keep_alive_s))
            try:
                yield Lease(model, runner.connection, runner.ready, load_s, turn.end)
            finally:
                self._residency.release(runner)
        finally:
            turn.end()

    async def residents(self) -> list[Resident]:
        """Loaded models with fresh figures, stale ones of those that do not answer (RUN-5)."""
        runners = list(self._residency)
        await asyncio.gather(*(runner.refresh() for runner in runners))
        return [runner.resident() for runner in runners]

    async def cache(self, name: ModelName, *, clear: bool = False) -> CacheReport:
        """What the loaded model `name` has cached, after a clear if that is asked for.

        Loads nothing and is no use of the model: its idle time goes on. NotFoundError for a model
        that is not loaded, also if it leaves meanwhile; BusyError where a clear waits for too long.
        """
        self._refuse_if_closed()
        digest = await asyncio.to_thread(self._store.digest, name)
        named = (each for each in self._residency if each.model.name == name)
        runner = (digest and self._residency.get(digest)) or next(named, None)
        if runner is None:
            await asyncio.to_thread(self._store.get, name)
            raise _not_loaded(name)
        try:
            return await runner.connection.cache(clear=clear)
        except ForerunError:
            if self._residency.get(runner.model.digest) is runner and not runner.process.exited:
                raise
            raise _not_loaded(name) from None

    async def unload(self, name: ModelName) -> bool:
        """Unload a model, also in the middle of its load; whether there was anything to unload.

        Answers under way get a grace, then are cut. Returns when the process is gone; requests that
        come meanwhile wait and load the model anew. A model that is loaded need not be in the store
        any more; NotFoundError or StoreError for a name that is neither.
        """
        digest = await asyncio.to_thread(self._store.digest, name)

        def matches(model: StoredModel) -> bool:
            return digest == model.digest or model.name == name

        aborted = await self._loader.abort(matches)
        for runner in self._residency:
            if matches(runner.model):
                self._residency.remove(runner, "unload", self._limits.grace_s)
        leaving = {each for each in self._residency.leaving if matches(each.model)}
        while leaving & set(self._residency.leaving):
            await self._residency.changes.next()
        if not (aborted or leaving):
            await asyncio.to_thread(self._store.get, name)
        return aborted or bool(leaving)

    async def forget(self, digest: Digest) -> None:
        """The model is no longer in the store: unload it once idle, whatever its keep-alive."""
        runner = self._residency.get(digest)
        if runner is None:
            return
        runner.forgotten, runner.keep_alive_s = True, 0.0
        if not runner.active:
            self._residency.rest(runner)
            while runner in self._residency.leaving:
                await self._residency.changes.next()

    async def close(self) -> None:
        """End every process and wait until they are gone; later leases are refused. Idempotent.

        Being cancelled does not stop it.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._residency.hurry()
        await self._loader.close()
        await self._residency.close()

    async def _hold(
        self, name: ModelName, options: LoadOptions, waiter: Waiter
    ) -> tuple[StoredModel, LoadedRunner, float]:
        """A runner that answers, held for the caller, and how long a load kept it waiting."""
        started, loaded = time.monotonic(), False
        while True:
            model = await asyncio.to_thread(self._store.get, name)
            self._refuse_if_closed()
            runner = self._residency.find(model.digest, options)
            if runner is not None:
                self._residency.hold(runner, waiter.keep_alive_s)
            else:
                again = Waiter(waiter.report, waiter.keep_alive_s)
                runner, newly = await self._loader.hold(model, options, again)
                loaded = loaded or newly
            if await self._answers(runner) and await self._is_what_was_asked(runner):
                return model, runner, time.monotonic() - started if loaded else 0.0

    async def _answers(self, runner: LoadedRunner) -> bool:
        """Ask a runner not heard from for a while whether it is there; if not, it goes (SCH-2)."""
        if time.monotonic() - runner.heard_at < self._limits.ping_after_s:
            return True
        alive = False
        try:
            alive = await runner.refresh(self._limits.ping_s)
        finally:
            if not alive:
                self._residency.release(runner)
        if not alive:
            self._residency.remove(runner, "no answer")
        return alive

    async def _is_what_was_asked(self, runner: LoadedRunner) -> bool:
        """Whether a process, which loads by name, has what the name meant when it was asked for.

        A pull may have replaced the model in between; then the runner goes, whichever it has.
        """
        if runner.checked:
            return True
        same = False
        try:
            model = await asyncio.to_thread(self._store.get, runner.model.name)
            same = model.digest == runner.model.digest
        except NotFoundError:
            same = True  # removed since; what is loaded goes on
        finally:
            if not same:
                self._residency.release(runner)
        if not same:
            self._residency.remove(runner, "replaced")
        runner.checked = same
        return same

    def _refuse_if_closed(self) -> None:
        if self._closing is not None:
            raise BusyError(ENDING)


def _not_loaded(name: ModelName) -> NotFoundError:
    return NotFoundError(f"{name} is not loaded, so nothing is cached; `forerun ps` lists what is")
