"""What a loaded model costs in memory, as measured and not as planned."""

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

import torch

from forerun.engine.loaded import LoadedModel

_STATUS = Path("/proc/self/status")


def anonymous_bytes() -> int:
    """Resident memory of this process that no file backs; 0 where the system does not say.

    Mapped weights are file-backed and not in it.
    """
    return _status_bytes("RssAnon")


def restart_peak(device: torch.device) -> None:
    """Let `peak_bytes` count from here, where that is possible: on CUDA."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """The most memory in use at once: allocated on CUDA, resident in this process's life elsewhere.

    0 where the system does not say.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _status_bytes("VmHWM")


def device_bytes(device: torch.device) -> int:
    """Memory of `device` that this process holds: reserved on CUDA, anonymous on a CPU."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return anonymous_bytes()


def release_freed(device: torch.device) -> None:
    """Give memory that is free inside this process back to the system (LOD-6)."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        with suppress(AttributeError):  # glibc has it; other libraries give back on their own
            ctypes.CDLL(None).malloc_trim(0)


def cache_bytes(loaded: LoadedModel) -> int:
    """Live state written so far, all layers of the target and of its drafter."""
    caches = (*loaded.caches, *loaded.drafters.caches)
    return sum(cache.nbytes() for cache in caches if cache is not None)


def _status_bytes(name: str) -> int:
    if not _STATUS.exists():
        return 0
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0
