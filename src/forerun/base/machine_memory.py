"""How much memory the system has for this process: its own, or the share that a cgroup leaves."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SYSTEM_ROOT = Path("/")
_UNLIMITED = 1 << 60  # cgroups write about 2**63 where there is no limit


@dataclass(frozen=True, slots=True)
class SystemMemory:
    """Bytes. None: the system does not say. `free` is below 0 in a group over its limit."""

    free: int | None
    total: int | None


def system_memory(root: Path = SYSTEM_ROOT) -> SystemMemory:
    """The system's memory, or the process's share of it where a cgroup gives it less."""
    meminfo = _meminfo(root / "proc/meminfo")
    free, total = meminfo.get("MemAvailable"), meminfo.get("MemTotal") or _physical_memory()
    for limit, used in _cgroup_limits(root):
        free = min(limit - used, limit if free is None else free)
        total = limit if total is None else min(limit, total)
    return SystemMemory(free, total)


def _meminfo(path: Path) -> dict[str, int]:
    """Bytes by name; empty where the system has no such file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    split = (line.split() for line in lines)
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in split if len(words) > 1}


def _physical_memory() -> int | None:
    """None on Windows, which has no such call."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _cgroup_limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of every memory cgroup around this process; page cache is not use."""
    for folder, limit_name, use_name, cache_name in _cgroups(root):
        try:
            limit = int((folder / limit_name).read_text())
            used = int((folder / use_name).read_text())
            pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cache = {name: int(value) for name, value in pairs}.get(cache_name, 0)
        except (OSError, ValueError):  # absent, or "max"
            continue
        if limit < _UNLIMITED:
            yield limit, max(0, used - cache)


def _cgroups(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """Folders of the groups that this process is in, from its own up, of both versions."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top = root / "sys/fs/cgroup"
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = top / path.lstrip("/")
        # inside a container the path may be the host's, and its own group is at the top
        for folder in [own, *(parent for parent in own.parents if parent.is_relative_to(top))]:
            yield folder, *names
