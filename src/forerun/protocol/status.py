"""The state of a runner, from the first moment of its process on (spec 05 HTP-2)."""

from typing import Literal

import msgspec

from forerun.protocol.requests import Struct


class Memory(Struct):
    """Bytes. `device_total` is what the device reports for the whole process.

    `budget` is what `snapshots` may grow to.
    """

    weights: int = 0
    caches: int = 0
    snapshots: int = 0
    budget: int = 0
    device_total: int = 0


class RunnerStatus(Struct):
    """`state` goes from loading to ready or to failed, and never back."""

    state: Literal["loading", "ready", "failed"]
    phase: str = ""
    progress: float = 0.0  # 0 to 1, of the load
    reason: str = ""  # of a failure
    failure_status: int = 0  # of a failure, as HTTP counts whose fault it is (08 API-14)
    out_of_memory: bool = False  # is what it failed for: with more of it free it may work
    context_length: int = 0
    drafters: list[str] = []  # that are bound, as the option `draft` names them
    memory: Memory = msgspec.field(default_factory=Memory)
    active_requests: int = 0
    queued_requests: int = 0
    load_seconds: float = 0.0
