"""Who makes room for whom: 08 SCH-3, SCH-5, SCH-8, FIT-3, FIT-4, T5; G03, G05."""

import asyncio
import math
import time
from contextlib import AsyncExitStack

import pytest

from fixtures.fake_runners import FakeDevices, FakeRunners
from fixtures.scheduling import settle
from forerun.base.errors import MachineError
from forerun.base.units import GIB, MIB
from forerun.protocol.status import Memory
from forerun.scheduler.devices import Device
from forerun.scheduler.estimate import GPU_WORKSPACE
from forerun.scheduler.runners import LoadOptions

FOREVER = math.inf


def test_the_idle_model_goes_and_the_busy_one_stays(scheduled):
    """08 SCH-3, G05."""

    async def story(world):
        async with world.lease("a"):
            await world.ask("b")
            await world.ask("c")
            assert await world.loaded() == ["a", "c"]

    scheduled(story, max_loaded=2)


def test_if_all_are_busy_the_next_one_waits(scheduled):
    """08 SCH-3, G05: B waits, A ends whole."""

    async def story(world):
        async with world.lease("a") as lease:
            waiting = asyncio.create_task(world.ask("b"))
            await settle()
            assert not waiting.done()
            assert not lease.connection.runner.closed
        await waiting
        assert lease.connection.runner.cut == 0
        assert await world.loaded() == ["b"]

    scheduled(story, max_loaded=1)


def test_requests_on_a_busy_model_do_not_keep_others_out(scheduled):
    """G03: in turn. A request for a model that has to go waits behind the load."""

    async def story(world):
        async with world.lease("a"):
            other = asyncio.create_task(world.ask("b"))
            await settle()
            again = asyncio.create_task(world.ask("a"))
            await settle()
            assert not again.done()
        await asyncio.gather(other, again)
        assert world.runners.names() == ["a", "b", "a"]

    scheduled(story, max_loaded=1)


def test_a_model_that_need_not_go_after_all_serves_those_who_waited(scheduled):
    """08 SCH-3: another one became idle first."""

    async def story(world):
        world.runners.memory = Memory()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(world.lease("a", keep_alive_s=10.0))
            async with world.lease("b", keep_alive_s=20.0):
                third = asyncio.create_task(world.ask("c"))
                await settle()
                again = asyncio.create_task(world.ask("a"))
                await settle()
                assert not again.done()
                world.runners.opened.clear()
            await world.load_begins(3)
            assert (await again).name == "a"  # while c still loads
            world.runners.opened.set()
            await third
        assert world.runners.names() == ["a", "b", "c"]

    scheduled(story, max_loaded=2)


def test_a_wait_for_room_that_is_given_up_leaves_everything_as_it_was(scheduled):
    """08 SCH-8, THR-2."""

    async def story(world):
        async with world.lease("a"):
            waiting = asyncio.create_task(world.ask("b"))
            await settle()
            waiting.cancel()
            await settle()
            assert world.scheduler.waiting == 1
            await world.ask("a")
        assert world.runners.names() == ["a"]

    scheduled(story, max_loaded=1)


def test_a_cancelled_request_is_skipped(scheduled):
    """08 SCH-8."""

    async def story(world):
        world.runners.opened.clear()
        first = asyncio.create_task(world.ask("a"))
        await world.load_begins()
        second, third = (asyncio.create_task(world.ask(name)) for name in "bc")
        await settle()
        second.cancel()
        await settle()
        world.runners.opened.set()
        await asyncio.gather(first, third)
        assert world.runners.names() == ["a", "c"]

    scheduled(story)


def test_a_load_that_nobody_waits_for_any_more_is_finished(scheduled):
    """08 SCH-8: the request that is tried again finds the model."""

    async def story(world):
        world.runners.opened.clear()
        only = asyncio.create_task(world.ask("a", keep_alive_s=60.0))
        await world.load_begins()
        only.cancel()
        await settle()
        assert world.scheduler.waiting == 0
        world.runners.opened.set()
        await world.becomes("a")
        (resident,) = await world.scheduler.residents()
        assert resident.active == 0
        assert resident.expires_at < time.time() + 61
        await world.ask("a")
        assert world.runners.names() == ["a"]

    scheduled(story)


def device(free, **fields):
    return FakeDevices(lambda: [Device("cpu", free, 100 * GIB, **fields)])


def test_a_model_that_does_not_fit_is_refused_before_anything_starts(scheduled):
    """08 FIT-3."""

    async def story(world):
        with pytest.raises(MachineError, match=r"needs .* on cpu and 1\.0 MB is available"):
            await world.ask("a")
        assert world.runners.made == []

    scheduled(story, devices=device(513 * MIB))


def test_a_model_that_fits_only_alone_evicts(scheduled):
    """08 FIT-3, FIT-4, T5: what a resident may still grow by is not free."""
    runners = FakeRunners(memory=Memory(weights=1, caches=1, device_total=2))

    async def story(world):
        await world.ask("a")
        await world.ask("b")
        assert await world.loaded() == ["b"]

    scheduled(story, runners=runners, devices=device(512 * MIB + 30_000_000))


def test_what_a_resident_has_reported_is_not_counted_twice(scheduled):
    """08 FIT-4: the system shows it as used already."""
    runners = FakeRunners(memory=Memory(weights=30_000_000, device_total=30_000_000))

    async def story(world):
        await world.ask("a")
        await world.ask("b")
        assert await world.loaded() == ["a", "b"]

    scheduled(story, runners=runners, devices=device(512 * MIB + 30_000_000))


@pytest.mark.parametrize(
    ("memory", "together"),
    [
        (Memory(weights=30_000_000, device_total=30_000_000), True),
        # snapshots are no weights: mapped ones are not in the process's own memory
        (Memory(weights=30_000_000, snapshots=30_000_000, device_total=30_000_000), False),
        # on top of the weights they are counted by the device, which shows them as used
        (Memory(weights=30_000_000, snapshots=9_000_000, device_total=39_000_000), True),
    ],
)
def test_snapshots_do_not_stand_for_what_a_resident_has_still_to_take(scheduled, memory, together):
    """08 FIT-4: they are used memory of their own, and nothing of the estimate."""

    async def story(world):
        await world.ask("a")
        await world.ask("b")
        assert await world.loaded() == (["a", "b"] if together else ["b"])

    free = device(512 * MIB + 30_000_000)
    scheduled(story, runners=FakeRunners(memory=memory), devices=free)


def test_figures_that_do_not_add_up_promise_no_more_than_the_need(scheduled):
    """08 FIT-4: what is counted and what the system says are of different moments."""
    runners = FakeRunners(memory=Memory(weights=3, snapshots=90_000_000, device_total=1000))

    async def story(world):
        await world.ask("a")
        (runner,) = world.scheduler._residency
        assert runner.promised == runner.place.need

    scheduled(story, runners=runners)


def test_beside_others_shared_memory_has_to_be_free_in_the_system_too(scheduled):
    """08 FIT-2: alone, the device's own figure decides."""
    shared = [Device("cpu", 460 * MIB), Device("mps", 9 * GIB, 10 * GIB, shared=True)]

    async def story(world):
        await world.ask("a")
        await world.ask("b")
        assert await world.loaded() == ["b"]

    scheduled(story, devices=FakeDevices(lambda: shared), device="mps")


def test_a_model_on_another_device_is_not_in_the_way(scheduled):
    """08 FIT-3: its eviction would free nothing where room is needed."""
    two = [Device("cpu"), Device("cuda:0", 460 * MIB, 24 * GIB)]

    async def story(world):
        await world.ask("a", LoadOptions(device="cpu"))
        with pytest.raises(MachineError, match="cuda:0"):
            await world.ask("b")
        assert await world.loaded() == ["a"]

    scheduled(story, devices=FakeDevices(lambda: two))


def gpu(free):
    return [Device("cpu"), Device("cuda:0", 457 * MIB + free, 24 * GIB)]


def test_freed_memory_of_a_gpu_is_waited_for(scheduled):
    """08 SCH-5: a driver may show it late."""
    devices = FakeDevices(lambda: gpu(GIB))
    runners = FakeRunners(memory=Memory(weights=GIB, device_total=GIB))
    looks = []

    def late():
        looks.extend([1] * runners.made[0].closed)
        return gpu(GIB if len(looks) > 3 else 10 * MIB)

    async def story(world):
        await world.ask("a")
        devices.figures = late
        await world.ask("b")
        assert await world.loaded() == ["b"]

    scheduled(story, runners=runners, devices=devices)


def test_memory_that_never_shows_is_not_waited_for_long(scheduled):
    """08 SCH-5: somebody else has taken it."""
    devices = FakeDevices(lambda: gpu(GIB))
    runners = FakeRunners(memory=Memory(weights=GIB, device_total=GIB))

    async def story(world):
        await world.ask("a")
        devices.figures = lambda: gpu(10 * MIB)
        with pytest.raises(MachineError, match="cuda:0"):
            await world.ask("b")

    scheduled(story, runners=runners, devices=devices, freed_wait_s=0.05)


@pytest.mark.parametrize(("free", "fits"), [(GPU_WORKSPACE, False), (2 * GPU_WORKSPACE, True)])
def test_a_gpu_needs_room_for_its_libraries_too(scheduled, free, fits):
    """08 FIT-1: what a process takes of a GPU beside its tensors."""

    async def story(world):
        if not fits:
            with pytest.raises(MachineError, match="cuda:0"):
                await world.ask("a")
            return
        await world.ask("a")

    scheduled(story, devices=FakeDevices(lambda: gpu(free)))
