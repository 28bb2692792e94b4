"""The models that are loaded and those that are leaving: holds, idle timers, unloads (SCH-4).

Everything happens on one event loop, so what stands between two awaits is one step.
"""

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import suppress

from forerun.base.logs import event, logger
from forerun.scheduler.loaded import LoadedRunner
from forerun.scheduler.runners import LoadOptions
from forerun.store.blobs import Digest

log = logger(__name__)


class Changes:
    """Wakes whoever waits for anything to change. To be checked again by the one who wakes."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def next(self) -> None:
        await self._event.wait()


class Residency:
    """Loaded runners by their model's digest.

    Laws: a held runner leaves only by `remove`, never by its timer; one that leaves is not found
    any more, and counts as there until its process is gone.
    """

    def __init__(self) -> None:
        self.changes = Changes()
        self._loaded: dict[Digest, LoadedRunner] = {}
        self._leaving: dict[LoadedRunner, asyncio.Task[None]] = {}
        self._no_grace = False

    def __iter__(self) -> Iterator[LoadedRunner]:
        return iter(list(self._loaded.values()))

    def __len__(self) -> int:
        return len(self._loaded)

    def get(self, digest: Digest) -> LoadedRunner | None:
        return self._loaded.get(digest)

    def find(self, digest: Digest, options: LoadOptions) -> LoadedRunner | None:
        """A runner that a request may hold now. One whose process has ended is removed."""
        runner = self._loaded.get(digest)
        if runner is None or runner.gated or not runner.serves(options):
            return None
        if runner.process.exited:
            self.remove(runner, "died")
            return None
        return runner

    def add(self, runner: LoadedRunner) -> None:
        """It counts as idle until it is held."""
        assert runner.model.digest not in self._loaded, runner.model.digest
        self._loaded[runner.model.digest] = runner
        loop = asyncio.get_running_loop()

        def ended() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                loop.call_soon_threadsafe(self._died, runner)

        runner.process.when_ended(ended)
        self.changes.tell()

    def hold(self, runner: LoadedRunner, keep_alive_s: float | None) -> None:
        """One request more. `keep_alive_s` None leaves what an earlier request said."""
        runner.active += 1
        if keep_alive_s is not None and not runner.forgotten:
            runner.keep_alive_s = keep_alive_s
        self._stop_timer(runner)

    def release(self, runner: LoadedRunner) -> None:
        """One request less; with the last one the idle time begins."""
        assert runner.active > 0, runner.active
        runner.active -= 1
        if not runner.active:
            self.rest(runner)
        self.changes.tell()

    def rest(self, runner: LoadedRunner) -> None:
        """Let the idle time of a runner that nobody holds begin."""
        if self._loaded.get(runner.model.digest) is not runner:
            return
        runner.idle_since = time.monotonic()
        self._stop_timer(runner)
        if runner.keep_alive_s <= 0:
            self.remove(runner, "keep_alive")
        elif not math.isinf(runner.keep_alive_s):
            loop = asyncio.get_running_loop()
            runner.expires_at = time.time() + runner.keep_alive_s
            runner.timer = loop.call_later(runner.keep_alive_s, self.remove, runner, "keep_alive")

    def remove(self, runner: LoadedRunner, reason: str, grace_s: float = 0.0) -> None:
        """Begin to unload it; requests that hold it may finish for `grace_s`.

        From now on nobody finds it, and a request for its model waits for a load. Idempotent.
        """
        if self._loaded.get(runner.model.digest) is runner:
            del self._loaded[runner.model.digest]
            self._stop_timer(runner)
            self._leaving[runner] = asyncio.create_task(self._leave(runner, reason, grace_s))
            self.changes.tell()

    @property
    def leaving(self) -> "list[LoadedRunner]":
        """Runners that are removed and whose processes are not gone yet."""
        return list(self._leaving)

    async def left(self) -> None:
        """Until every process that is leaving is gone, and its memory with it (RUN-6)."""
        while self._leaving:
            await self.changes.next()

    def hurry(self) -> None:
        """No grace any more, for answers under way in what is leaving or will."""
        self._no_grace = True
        self.changes.tell()

    async def close(self) -> None:
        """Unload everything at once, and return when all processes are gone."""
        self.hurry()
        for runner in self:
            self.remove(runner, "shutdown")
        await self.left()

    async def _leave(self, runner: LoadedRunner, reason: str, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        while runner.active and not self._no_grace and time.monotonic() < deadline:
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self.changes.next()
            except TimeoutError:
                break
        try:
            why = await asyncio.to_thread(_end, runner)
        finally:
            del self._leaving[runner]
            self.changes.tell()
        event(
            log,
            "model unloaded",
            model=str(runner.model.name),
            reason=reason,
            seconds=time.monotonic() - runner.loaded_at,
            memory=runner.reported,
            device=runner.place.device,
            **why,
        )

    def _died(self, runner: LoadedRunner) -> None:
        """Its process has ended, whoever ended it."""
        self.remove(runner, "died")

    def _stop_timer(self, runner: LoadedRunner) -> None:
        runner.expires_at = None
        if runner.timer is not None:
            runner.timer.cancel()
            runner.timer = None


def _end(runner: LoadedRunner) -> dict[str, str]:
    """Close its process; what it died of, if it did. Blocks."""
    why = {"error": runner.process.last_error()} if runner.process.exited else {}
    runner.process.close()
    return why
