"""How everything here is measured, so that two numbers of one run can be compared.

- Contenders run in interleaved rounds: A B, B A, A B, ... after warm-up rounds that do not count.
- A figure is a median with a bootstrap interval; a claim is a *ratio* within one run, taken round
  by round, since a shared machine drifts by more than the differences that matter.
- A run during which something else took the machine is repeated, as long as patience lasts.
- Memory is the growth of anonymous resident memory above its value after imports: mapped weights
  are the page cache's, and what an import costs is not the model's.
- Error is max|a - b| / max|b| for each position.
- The report names machine, commit and what else ran, and its last line is one line of JSON.
"""

import json
import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[1]
NEAR_TIE_MARGIN = 1e-3  # of the logit scale, spec 06 WID-6
NEAR_TIES_ALLOWED = 1 / 5000  # of the tokens compared

Figure = TypeVar("Figure")
Statistic = Callable[[Sequence[float]], float]


@dataclass(frozen=True, slots=True)
class Contender:
    """`run` does one round's work and returns its figure (seconds, or tokens a second)."""

    name: str
    run: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Interval:
    """A median, or what else the name says, and the bounds of its 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.low:.4g}-{self.high:.4g})"


def interleave(
    contenders: Sequence[Contender],
    rounds: int,
    *,
    warm_up: int = 1,
    quiet: "Quiet | None" = None,
) -> dict[str, list[float]]:
    """Every contender's figures, round by round. The order turns round every other round."""
    figures: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(-warm_up, rounds):
        order = contenders if number % 2 == 0 else list(reversed(contenders))
        for contender in order:
            figure = quiet(contender.run) if quiet and number >= 0 else contender.run()
            if number >= 0:
                figures[contender.name].append(figure)
    return figures


class Quiet:
    """Repeats what other processes, or a hypervisor, disturbed. Linux only; elsewhere it does not.

    Half the cores taken from a contender that waits at barriers costs it much more than half its
    speed, and another contender nothing: such rounds compare nothing.
    """

    share = 0.1  # of a core that others may take
    jitter_s = 0.04  # the system counts in hundredths of a second

    def __init__(self, patience_s: float) -> None:
        """patience_s: of the whole benchmark, after which anything counts."""
        self.repeated = self.disturbed = 0
        self._until = time.monotonic() + patience_s

    def __call__(self, run: Callable[[], Figure]) -> Figure:
        while True:
            self._wait()
            figure, calm = self._watch(run)
            if not calm and time.monotonic() < self._until:
                self.repeated += 1
                continue
            self.disturbed += not calm
            return figure

    def _wait(self) -> None:
        while time.monotonic() < self._until and not self._watch(lambda: time.sleep(0.3) or 0.0)[1]:
            pass

    def _watch(self, run: Callable[[], Figure]) -> tuple[Figure, bool]:
        before, start = others_seconds(), time.perf_counter()
        figure = run()
        taken, wall = others_seconds() - before, time.perf_counter() - start
        return figure, taken <= self.share * wall + self.jitter_s


def others_seconds() -> float:
    """CPU seconds until now that were not this process's or its children's, ended ones included.

    What a hypervisor gave to others counts.
    """
    if not Path("/proc/stat").exists():
        return 0.0
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle, waiting = fields[3:5]
    return (sum(fields) - idle - waiting - _family_ticks()) / os.sysconf("SC_CLK_TCK")


def _family_ticks() -> int:
    """Of this process and all below it, with those of their ended children."""
    parents, ticks = {}, {}
    for pid, fields in _processes():
        parents[pid], ticks[pid] = int(fields[2]), sum(map(int, fields[12:16]))

    def ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid]
        return pid == os.getpid()

    return sum(spent for pid, spent in ticks.items() if ours(pid))


def interval(
    figures: Sequence[float],
    *,
    statistic: Statistic = statistics.median,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """The median of `figures`, or another statistic, with its bootstrap interval."""
    chance = random.Random(seed)
    drawn = sorted(statistic(chance.choices(figures, k=len(figures))) for _ in range(resamples))
    low, high = drawn[int(0.025 * resamples)], drawn[int(0.975 * resamples) - 1]
    return Interval(statistic(figures), low, high)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """ours / theirs, paired round by round: what a claim is made of."""
    return interval([a / b for a, b in zip(ours, theirs, strict=True)])


def timed(work: Callable[[], object]) -> float:
    """Wall seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def anonymous_bytes(pid: int | None = None) -> int:
    """Anonymous resident memory of a process (default: this one). Linux only; elsewhere 0."""
    status = Path(f"/proc/{pid or os.getpid()}/status")
    if not status.exists():
        return 0
    for line in status.read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


class MemoryGrowth:
    """Anonymous memory since this was made; make it after the imports."""

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._base = anonymous_bytes(pid)

    def bytes(self) -> int:
        return anonymous_bytes(self._pid) - self._base


def relative_error(got: object, want: object) -> list[float]:
    """max|got - want| / max|want| for each row of two [positions, ...] arrays or tensors."""
    import numpy

    a, b = (numpy.asarray(x, dtype=numpy.float64) for x in (got, want))
    assert a.shape == b.shape, (a.shape, b.shape)
    a, b = a.reshape(a.shape[0], -1), b.reshape(b.shape[0], -1)
    scale = numpy.maximum(numpy.abs(b).max(axis=1), numpy.finfo(numpy.float64).tiny)
    return [float(error) for error in numpy.abs(a - b).max(axis=1) / scale]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two greedy runs by the near-tie rule (spec 06 WID-6)."""

    equal: int  # leading ids that are the same
    compared: int
    near_tie: bool  # the runs part where the plain run was undecided

    @property
    def holds(self) -> bool:
        """All ids equal, or parted at a near-tie."""
        return self.equal == self.compared or self.near_tie


def agreement(plain: Sequence[int], other: Sequence[int], margins: Sequence[float]) -> Agreement:
    """Compare two greedy runs.

    margins  the plain run's (top - second) / max|logit| at each position
    """
    compared = max(len(plain), len(other))
    equal = next(
        (i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b),
        min(len(plain), len(other)),
    )
    tie = equal < min(len(plain), len(margins)) and margins[equal] < NEAR_TIE_MARGIN
    return Agreement(equal, compared, tie)


def agree(runs: Sequence[Agreement]) -> bool:
    """Each run holds, and near-ties are rarer than 1 in 5,000 tokens (one is always allowed)."""
    tokens = sum(run.equal for run in runs)
    ties = sum(run.near_tie for run in runs)
    return all(run.holds for run in runs) and ties <= max(1, tokens * NEAR_TIES_ALLOWED)


def surroundings() -> dict[str, object]:
    """Machine, commit and what else ran."""
    return {
        "machine": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "clean": not _git("status", "--porcelain"),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "beside": _busy(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def report(question: str, results: dict[str, Interval], **more: object) -> None:
    """A table for people, then one line of JSON for programs."""
    print(f"\n{question}\n")
    width = max(len(name) for name in results)
    for name, figure in results.items():
        print(f"  {name:<{width}}  {figure}")
    print()
    figures = {name: asdict(figure) for name, figure in results.items()}
    print(json.dumps({"question": question, "results": figures, **more, **surroundings()}))


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _busy() -> list[str]:
    """Commands of other processes that took more than 5 % of a core, over half a second."""
    before = _ticks()
    time.sleep(0.5)
    busy = []
    for pid, (name, ticks) in _ticks().items():
        spent = ticks - before.get(pid, (name, ticks))[1]
        if pid != os.getpid() and spent > 0.05 * 0.5 * os.sysconf("SC_CLK_TCK"):
            busy.append(name)
    return sorted(busy)


def _ticks() -> dict[int, tuple[str, int]]:
    return {pid: (f[0], int(f[12]) + int(f[13])) for pid, f in _processes()}


def _processes() -> Iterator[tuple[int, list[str]]]:
    """Process id, and name, state, parent and so on, as /proc lists them from the name on."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "stat").read_text()
        except OSError:
            continue  # it ended meanwhile
        name, _, rest = text.partition("(")[2].rpartition(")")
        yield int(folder.name), [name, *rest.split()]
