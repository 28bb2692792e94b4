"""Whether a model fits where it is to go: yes, after an eviction, or not at all (FIT-2, FIT-3)."""

from dataclasses import dataclass
from typing import Literal

from forerun.base.units import format_bytes

Verdict = Literal["fits", "evict", "refuse"]


@dataclass(frozen=True, slots=True)
class Room:
    """Memory of one device, in bytes. None: the system does not say, so nothing is judged."""

    free: int | None
    total: int | None
    overhead: int  # kept free
    promised: int = 0  # what resident models may still grow by (FIT-4)
    residents: int = 0  # models whose eviction would free memory here
    system_free: int | None = None  # of a device that shares memory with the system, else None

    @property
    def available(self) -> int | None:
        """What a further model may take (FIT-1).

        Alone, a model is judged by the device's own figure; beside others, what the device shares
        with the system must be free there as well (FIT-2).
        """
        free = self.free
        if self.residents and self.system_free is not None:
            free = self.system_free if free is None else min(free, self.system_free)
        return None if free is None else max(0, free - self.overhead - self.promised)


def decide(need: int, room: Room) -> Verdict:
    """FIT-3. What is larger than the whole device evicts nobody."""
    available = room.available
    if available is None or need <= available:
        return "fits"
    hopeless = room.total is not None and need > room.total - room.overhead
    return "evict" if room.residents and not hopeless else "refuse"


def refusal(model: str, need: int, room: Room, *, device: str) -> str:
    """The error of a model that does not fit: need, available, overhead and what helps."""
    remedies = "a smaller num_ctx or a smaller model"
    if device != "cpu":
        remedies += ", FORERUN_DEVICE=cpu, or less FORERUN_GPU_OVERHEAD if it is set"
    return (
        f"{model} needs {format_bytes(need)} on {device} and {format_bytes(room.available or 0)} "
        f"is available ({format_bytes(room.overhead)} is kept free); what helps is {remedies}"
    )
