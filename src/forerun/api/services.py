"""What the routes stand on, built once by the server's composition root."""

from dataclasses import dataclass

from forerun.api.metrics import Metrics
from forerun.scheduler.importing import ChildSettings
from forerun.scheduler.scheduler import Scheduler
from forerun.store.store import Store


@dataclass(frozen=True, slots=True)
class Services:
    """Shared by all requests, on one event loop."""

    store: Store
    scheduler: Scheduler
    children: ChildSettings  # for the processes of pulls and creates
    metrics: Metrics
