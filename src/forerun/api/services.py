"""What the routes stand on, built once by the server's composition root."""

from dataclasses import dataclass, field

from forerun.api.metrics import Metrics
from forerun.scheduler.process import ChildSettings
from forerun.scheduler.scheduler import Scheduler
from forerun.store.store import Store
from forerun.store.uploads import Uploads


@dataclass(frozen=True, slots=True)
class Services:
    """Shared by all requests, on one event loop."""

    store: Store
    scheduler: Scheduler
    children: ChildSettings  # for the processes of pulls and creates
    metrics: Metrics
    uploads: Uploads = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "uploads", Uploads(self.store))

    async def close(self) -> None:
        """End every process, then let go of uploads that nobody used. Idempotent."""
        await self.scheduler.close()
        self.uploads.close()
