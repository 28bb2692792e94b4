"""One loaded model: its process, where it lies, and who holds it."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from forerun.base.errors import ForerunError
from forerun.protocol.status import RunnerStatus
from forerun.scheduler.async_connection import FIGURES_S, AsyncConnection
from forerun.scheduler.eviction import Candidate
from forerun.scheduler.lease import Report, Resident
from forerun.scheduler.runners import LoadOptions
from forerun.store.stored import StoredModel


class Runner(Protocol):
    """A process for one model, as `RunnerProcess` is. What may block is called in threads."""

    def load(self, report: Report, *, stall_s: float) -> RunnerStatus: ...

    def close(self) -> None: ...

    def killed(self) -> bool: ...

    def last_error(self) -> str: ...

    def when_ended(self, call: Callable[[], None]) -> None: ...

    @property
    def exited(self) -> bool: ...

    @property
    def async_connection(self) -> AsyncConnection: ...


RunnerFactory = Callable[[str, LoadOptions], Runner]  # of a model's name


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model is loaded, and what it takes there."""

    device: str
    told: str | None  # the device that the process is told; None: it takes the best there is
    context: int  # tokens
    max_context: int | None  # the model's own limit
    need: int  # bytes, as estimated


class LoadedRunner:
    """Who holds it, and when it was last heard from; holds and timers are `Residency`'s."""

    def __init__(
        self,
        model: StoredModel,
        process: Runner,
        ready: RunnerStatus,
        place: Place,
        *,
        keep_alive_s: float,
    ) -> None:
        """`ready` is its status when it became so."""
        self.model = model
        self.process = process
        self.connection = process.async_connection
        self.ready = ready
        self.figures = ready  # the latest
        self.place = place
        self.keep_alive_s = keep_alive_s
        self.forgotten = False  # gone from the store: no request prolongs its stay
        self.checked = False  # that it has the model that its name meant
        self.gated = False  # about to be unloaded once idle: nobody new may hold it
        self.active = 0
        self.loaded_at = self.idle_since = self.heard_at = time.monotonic()
        self.expires_at: float | None = None  # seconds since the epoch; None: never
        self.timer: asyncio.TimerHandle | None = None

    def serves(self, options: LoadOptions) -> bool:
        """Whether a request with these options needs no reload (SCH-2).

        Options that say nothing take what is loaded; a smaller num_ctx is the request's own limit.
        """
        return self._is_on(options.device) and self._holds(options.num_ctx)

    def _is_on(self, device: str | None) -> bool:
        return device in (None, self.place.device, self.place.device.partition(":")[0])

    def _holds(self, num_ctx: int | None) -> bool:
        if num_ctx is None or num_ctx <= max(self.ready.context_length, self.place.context):
            return True
        return self.place.max_context is not None and self.place.context >= self.place.max_context

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.active, self.keep_alive_s, self.idle_since)

    @property
    def reported(self) -> int:
        """Bytes of its device that it holds by its own account."""
        return self.figures.memory.device_total

    @property
    def promised(self) -> int:
        """Bytes that it may still take beyond what its device shows as used (FIT-4).

        Caches are only touched as tokens come, and mapped weights count as free memory of a system.
        What a process holds besides weights and caches was no part of the estimate: snapshots grow
        by a budget of their own, and those there are show as used.
        """
        memory = self.figures.memory
        held = min(self.reported - memory.snapshots, memory.weights + memory.caches)
        return max(0, self.place.need - max(0, held))

    async def refresh(self, timeout_s: float = FIGURES_S) -> bool:
        """Fresh figures, the old ones if it does not answer in time; whether it did (RUN-5)."""
        with suppress(ForerunError):
            self.figures = await self.connection.status(timeout_s)
            self.heard_at = time.monotonic()
            return True
        return False

    def resident(self) -> Resident:
        """What `ps` shows."""
        expires_at = self.expires_at
        if self.active and self.keep_alive_s != float("inf"):
            expires_at = time.time() + self.keep_alive_s
        return Resident(
            name=self.model.name,
            model=self.model,
            status=self.figures,
            expires_at=expires_at,
            device=self.place.device,
            active=self.active,
        )
