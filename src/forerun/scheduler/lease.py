"""What the scheduler gives and is told: leases, residents, limits, and the bound on who waits."""

from collections.abc import Callable
from dataclasses import dataclass, field

from forerun.base.errors import BusyError
from forerun.protocol.status import RunnerStatus
from forerun.scheduler.async_connection import AsyncConnection
from forerun.store.names import ModelName
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
    context_length: int | None = None  # FORERUN_CONTEXT_LENGTH
    device: str | None = None  # FORERUN_DEVICE
    grace_s: float = 5.0  # of answers under way when their model is unloaded by name
    ping_s: float = 10.0  # longest silence of a runner that is asked whether it is there
    ping_after_s: float = 5.0  # a runner heard from since is not asked
    freed_wait_s: float = 5.0  # longest wait for a GPU to show freed memory (SCH-5)


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


class Turns:
    """Counts the requests that wait for a turn, and refuses those that are too many (SCH-1)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.waiting = 0

    def enter(self) -> "Turn":
        """Raises BusyError where the queue is full."""
        if self.waiting >= self._most:
            raise BusyError(
                "server busy, please try again: maximum pending requests exceeded; "
                "FORERUN_MAX_QUEUE sets it"
            )
        return Turn(self)


class Turn:
    """One request's place among those that wait."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waits = True
        turns.waiting += 1

    def end(self) -> None:
        """It no longer waits. Idempotent."""
        if self._waits:
            self._waits = False
            self._turns.waiting -= 1
