"""A load that requests wait for: who waits, and how each hears of it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from forerun.base.errors import ForerunError
from forerun.protocol.status import RunnerStatus
from forerun.scheduler.lease import Report
from forerun.scheduler.loaded import LoadedRunner
from forerun.scheduler.runners import LoadOptions
from forerun.store.stored import StoredModel


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """A request without a model. Its future gets the runner, held for it, or the reason why not."""

    report: Report
    keep_alive_s: float | None
    held: "asyncio.Future[LoadedRunner]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class LoadJob:
    """One model to be loaded, with the options of the request that asked first."""

    def __init__(self, model: StoredModel, options: LoadOptions) -> None:
        self.model = model
        self.options = options
        self.loads = False  # a process was started, so that whoever waits waits for a load
        self._waiters: list[Waiter] = []
        self._last: RunnerStatus | None = None

    def covers(self, options: LoadOptions) -> bool:
        """Whether a request with `options` may wait for this load."""
        enough = options.num_ctx is None or options.num_ctx <= (self.options.num_ctx or 0)
        return enough and options.device in (None, self.options.device)

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits."""
        return any(not waiter.held.done() for waiter in self._waiters)

    @property
    def keep_alive_s(self) -> float | None:
        """What the last of the requests said, those that are gone included."""
        stated = [each.keep_alive_s for each in self._waiters if each.keep_alive_s is not None]
        return stated[-1] if stated else None

    def add(self, waiter: Waiter) -> None:
        self._waiters.append(waiter)
        if self._last is not None:
            waiter.report(self._last)

    def tell(self, status: RunnerStatus) -> None:
        """Progress, to everybody who still waits."""
        self._last = status
        for waiter in self._waiters:
            if not waiter.held.done():
                waiter.report(status)

    def hand_out(
        self, runner: LoadedRunner, hold: Callable[[LoadedRunner, float | None], None]
    ) -> None:
        """Let everybody who still waits hold `runner`, in this very step, before it can leave."""
        for waiter in self._waiters:
            if not waiter.held.done():
                hold(runner, waiter.keep_alive_s)
                waiter.held.set_result(runner)

    def fail(self, error: ForerunError) -> None:
        """The same one line for everybody; each gets an exception of its own to raise."""
        for waiter in self._waiters:
            if not waiter.held.done():
                waiter.held.set_exception(type(error)(*error.args))
