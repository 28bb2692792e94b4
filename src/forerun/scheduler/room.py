"""Makes room for a model: looks, evicts, waits for busy models (spec 08 FIT, SCH-3, SCH-5)."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forerun.base.errors import MachineError
from forerun.scheduler.devices import Device, Devices, overhead, pick
from forerun.scheduler.estimate import (
    CPU_CHUNK,
    GPU_CHUNK,
    GPU_WORKSPACE,
    ModelFacts,
    choose_context,
    estimate,
)
from forerun.scheduler.eviction import choose, most_models
from forerun.scheduler.lease import SchedulerLimits
from forerun.scheduler.load_job import LoadJob
from forerun.scheduler.loaded import LoadedRunner, Place
from forerun.scheduler.placement import Room, decide, refusal
from forerun.scheduler.residency import Residency

FREED_SHARE = 0.75  # of what an unload should free that has to show (SCH-5)
FREED_POLL_S = 0.1


class NobodyWaitsError(Exception):
    """Everybody who waited for a load is gone; it is not worth an eviction (SCH-8)."""


@dataclass(frozen=True, slots=True)
class _Survey:
    """How things stand for one model."""

    place: Place
    room: Room
    most: int  # models at once
    beside: Sequence[LoadedRunner]  # those whose memory it would share


class RoomMaker:
    """Used by the one task that loads, so that no two loads count on the same memory.

    A busy model that has to go is gated: requests for it wait behind the load that it makes room
    for, so that a stream of requests on one model cannot keep all others out. Should another model
    become idle first, that one goes instead.
    """

    def __init__(
        self,
        residency: Residency,
        devices: Devices,
        limits: SchedulerLimits,
        ungated: Callable[[], None],
    ) -> None:
        """`ungated` is called when models that were gated stay after all."""
        self._residency = residency
        self._devices = devices
        self._limits = limits
        self._ungated = ungated

    async def retire(self, job: LoadJob) -> float | None:
        """Unload the model's old runner once it is idle; the keep-alive that it had.

        Raises NobodyWaitsError, and the old runner stays.
        """
        _check(job)
        runner = self._residency.get(job.model.digest)
        if runner is None:
            return None
        runner.gated = True
        try:
            while runner.active and self._residency.get(job.model.digest) is runner:
                await self._change(job)
        except NobodyWaitsError:
            self._ungate([runner])
            raise
        self._residency.remove(runner, "reload")
        return runner.keep_alive_s

    async def make(self, job: LoadJob, facts: ModelFacts) -> Place:
        """Where the model goes, with room for it there.

        Raises MachineError naming need and room if it cannot fit, NobodyWaitsError.
        """
        gated: list[LoadedRunner] = []
        try:
            while True:
                survey = await self._survey(job, facts)
                _check(job)
                if self._residency.leaving:  # their memory is about to be free
                    await self._residency.left()
                    continue
                victims = self._victims(survey, str(job.model.name))
                if not victims:
                    return survey.place
                await self._free_one(victims, survey, gated, job)
        finally:
            self._ungate(gated)

    async def evict_idle(self, job: LoadJob) -> bool:
        """Unload all that are idle, or else the first that will be; whether there was one (SCH-6).

        Raises NobodyWaitsError.
        """
        gated: list[LoadedRunner] = []
        try:
            while not (idle := [each for each in self._residency if not each.active]):
                if not len(self._residency):
                    return False
                gated += [each for each in self._residency if not each.gated]
                for runner in gated:
                    runner.gated = True
                await self._change(job)
        finally:
            self._ungate(gated)
        for runner in idle:
            self._residency.remove(runner, "evicted")
        await self._residency.left()
        return True

    async def _survey(self, job: LoadJob, facts: ModelFacts) -> _Survey:
        await asyncio.gather(*(runner.refresh() for runner in self._residency))
        devices = await asyncio.to_thread(self._devices.look)
        wanted = job.options.device or ("cpu" if facts.num_gpu == 0 else self._limits.device)
        device = pick(devices, wanted, self._promised)
        place = self._place(job, facts, device, wanted)
        memory = {"cpu", *(each.name for each in devices if each.shared)}
        same = memory if device.name in memory else {device.name}
        beside = [runner for runner in self._residency if runner.place.device in same]
        room = Room(
            free=device.free,
            total=device.total,
            overhead=overhead(device, self._limits.gpu_overhead),
            promised=sum(runner.promised for runner in beside),
            residents=len(beside),
            system_free=devices[0].free if device.shared else None,
        )
        gpus = sum(each.is_gpu for each in devices)
        return _Survey(place, room, most_models(self._limits.max_loaded, gpus), beside)

    def _place(self, job: LoadJob, facts: ModelFacts, device: Device, wanted: str | None) -> Place:
        # nobody asked, and no driver shows a GPU: torch may still know one that is not NVIDIA's
        told = device.name if wanted or device.is_gpu else None
        gpu_total = device.total if device.is_gpu else None
        context = choose_context(facts, job.options.num_ctx, self._limits.context_length, gpu_total)
        chunk = GPU_CHUNK if device.is_gpu else CPU_CHUNK
        weights = facts.weights + (GPU_WORKSPACE if device.is_gpu else facts.repacked)
        need = estimate(facts.shape, weights, context=context, chunk=chunk, draft=facts.draft)
        return Place(device.name, told, context, facts.shape.max_context, need.total)

    def _promised(self, device: str) -> int:
        return sum(each.promised for each in self._residency if each.place.device == device)

    def _victims(self, survey: _Survey, name: str) -> Sequence[LoadedRunner]:
        """Of whom one has to go; nobody if the model fits. MachineError if it never will."""
        need, room = survey.place.need, survey.room
        verdict = decide(need, room)
        if verdict == "refuse":
            raise MachineError(refusal(name, need, room, device=survey.place.device))
        if verdict == "evict":
            return survey.beside
        return list(self._residency) if len(self._residency) >= survey.most else ()

    async def _free_one(
        self,
        victims: Sequence[LoadedRunner],
        survey: _Survey,
        gated: list[LoadedRunner],
        job: LoadJob,
    ) -> None:
        """Evict one that is idle, or else wait for any change with one that is busy gated."""
        victim = choose((runner, runner.candidate) for runner in victims)
        assert victim is not None, "somebody has to go"
        if not victim.active:
            await self._evict(victim, survey, job)
            return
        if not any(runner in gated for runner in victims):
            victim.gated = True
            gated.append(victim)
        await self._change(job)

    async def _evict(self, victim: LoadedRunner, survey: _Survey, job: LoadJob) -> None:
        device, free = survey.place.device, survey.room.free
        self._residency.remove(victim, "evicted")
        await self._residency.left()
        discrete = device.startswith("cuda") and survey.room.system_free is None
        if discrete and victim.place.device == device and free is not None:
            least = free + int(FREED_SHARE * victim.reported)
            await self._until_freed(device, least, job)

    async def _until_freed(self, device: str, least: int, job: LoadJob) -> None:
        """A driver shows freed memory a moment after the process is gone (SCH-5)."""
        deadline = time.monotonic() + self._limits.freed_wait_s
        while await self._free(device) < least and time.monotonic() < deadline:
            _check(job)
            await asyncio.sleep(FREED_POLL_S)

    async def _free(self, device: str) -> int:
        devices = await asyncio.to_thread(self._devices.look)
        return next((each.free or 0 for each in devices if each.name == device), 0)

    async def _change(self, job: LoadJob) -> None:
        _check(job)
        await self._residency.changes.next()
        _check(job)

    def _ungate(self, gated: Sequence[LoadedRunner]) -> None:
        for runner in gated:
            runner.gated = False
        if gated:
            self._ungated()


def _check(job: LoadJob) -> None:
    if not job.wanted:
        raise NobodyWaitsError
