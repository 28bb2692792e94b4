"""Who is loaded and for how long: 08 SCH-1, SCH-2, SCH-4, SCH-7; G05, G11."""

import asyncio
import math
import time
from contextlib import AsyncExitStack

import pytest

from fixtures.fake_runners import FakeDevices
from fixtures.scheduling import ANY, settle
from forerun.base.errors import BusyError, NotFoundError
from forerun.scheduler.devices import Device
from forerun.scheduler.runners import LoadOptions
from forerun.store.names import ModelName

FOREVER = math.inf


def test_a_loaded_model_is_used_again(scheduled):
    async def story(world):
        first = await world.ask("a")
        async with world.lease("a") as lease:
            assert lease.connection.runner is first
            assert lease.load_s == 0
        assert world.runners.names() == ["a"]

    scheduled(story)


def test_two_names_of_one_manifest_share_a_runner(scheduled):
    """08 SCH-2: the key of a model is its manifest's digest."""

    async def story(world):
        assert await world.ask("a") is await world.ask("alias")
        assert await world.scheduler.unload(ModelName.parse("alias"))
        assert await world.loaded() == []

    scheduled(story)


def test_loads_are_serial_and_loaded_models_are_not_kept_waiting(scheduled):
    """08 SCH-1."""

    async def story(world):
        await world.ask("a")
        world.runners.opened.clear()
        others = [asyncio.create_task(world.ask("b"))]
        await world.load_begins(2)
        others.append(asyncio.create_task(world.ask("c")))
        for _ in range(3):
            async with asyncio.timeout(1):
                await world.ask("a")
        assert world.runners.names() == ["a", "b"]
        world.runners.opened.set()
        await asyncio.gather(*others)
        assert world.runners.most_loading == 1

    scheduled(story)


def test_a_full_queue_is_a_503_until_somebody_has_a_turn(scheduled):
    """08 SCH-1, T6: a request counts until its turn on the device."""

    async def story(world):
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(world.lease("a"))
            await stack.enter_async_context(world.lease("a"))
            assert world.scheduler.waiting == 2
            with pytest.raises(BusyError, match=r"server busy.*maximum pending requests exceeded"):
                await world.ask("a")
            first.started()
            first.started()
            assert world.scheduler.waiting == 1
            await world.ask("a")

    scheduled(story, max_queue=2)


def test_a_queue_of_none_refuses_everybody(scheduled):
    """T6."""

    async def story(world):
        with pytest.raises(BusyError):
            await world.ask("a")
        assert world.runners.made == []

    scheduled(story, max_queue=0)


def test_a_request_cancelled_in_the_moment_of_its_turn_holds_nothing(scheduled):
    """08 SCH-8, THR-2: the model is its own already, and it has not been told yet."""

    async def story(world):
        hold = world.scheduler._residency.hold

        def hold_and_cancel(runner, keep_alive_s):
            hold(runner, keep_alive_s)
            asyncio.get_running_loop().call_soon(asking.cancel)

        world.scheduler._residency.hold = hold_and_cancel
        asking = asyncio.create_task(world.ask("a"))
        with pytest.raises(asyncio.CancelledError):
            await asking
        (resident,) = await world.scheduler.residents()
        assert resident.active == 0

    scheduled(story)


def test_an_unknown_model_is_not_found_and_does_not_count(scheduled):
    async def story(world):
        with pytest.raises(NotFoundError):
            await world.ask("nobody")
        assert world.scheduler.waiting == 0

    scheduled(story)


@pytest.mark.parametrize(
    ("first", "then", "reloads"),
    [
        (ANY, ANY, False),
        (LoadOptions(num_ctx=1024), ANY, False),  # what says nothing takes what is there
        (LoadOptions(num_ctx=1024), LoadOptions(num_ctx=512), False),
        (LoadOptions(num_ctx=1024), LoadOptions(num_ctx=1024), False),
        (LoadOptions(num_ctx=1024), LoadOptions(num_ctx=2048), True),
        (LoadOptions(num_ctx=99_999), LoadOptions(num_ctx=999_999), False),  # the model has no more
        (ANY, LoadOptions(num_thread=3), False),
        (ANY, LoadOptions(device="cpu"), True),
        (ANY, LoadOptions(device="cuda"), False),
        (ANY, LoadOptions(device="cuda:0"), False),
        (LoadOptions(device="cpu"), LoadOptions(device="cuda"), True),
    ],
)
def test_only_more_context_or_another_device_reloads(scheduled, first, then, reloads):
    """08 SCH-2, G11."""
    gpu = FakeDevices(lambda: [Device("cpu"), Device("cuda:0")])

    async def story(world):
        before = await world.ask("a", first)
        after = await world.ask("a", then)
        assert (before is not after) == reloads
        assert before.closed == reloads
        assert await world.ask("a", then) is after

    scheduled(story, devices=gpu)


def test_a_reload_waits_until_the_old_one_is_idle(scheduled):
    """08 SCH-2, G05: and requests that come behind it wait for the new one."""

    async def story(world):
        async with world.lease("a", LoadOptions(num_ctx=64)) as lease:
            old = lease.connection.runner
            larger = asyncio.create_task(world.ask("a", LoadOptions(num_ctx=128)))
            await settle()
            behind = asyncio.create_task(world.ask("a"))
            await settle()
            assert not old.closed
            assert not behind.done()
        new = await larger
        assert await behind is new is not old
        assert (old.cut, old.closed) == (0, True)

    scheduled(story)


def test_a_reload_keeps_what_was_said_about_staying(scheduled):
    """08 SCH-4: a pinned model stays pinned."""

    async def story(world):
        await world.ask("a", LoadOptions(num_ctx=64), keep_alive_s=FOREVER)
        await world.ask("a", LoadOptions(num_ctx=128))
        (resident,) = await world.scheduler.residents()
        assert resident.expires_at is None

    scheduled(story)


def test_a_reload_that_nobody_waits_for_any_more_is_none(scheduled):
    """08 SCH-8."""

    async def story(world):
        async with world.lease("a", LoadOptions(num_ctx=64)) as lease:
            larger = asyncio.create_task(world.ask("a", LoadOptions(num_ctx=128)))
            await settle()
            larger.cancel()
            await settle()
            assert await world.ask("a") is lease.connection.runner
        assert world.runners.names() == ["a"]

    scheduled(story)


def test_a_reload_that_was_given_up_in_the_queue_leaves_the_old_runner(scheduled):
    """08 SCH-8: skipped before anything is unloaded for it."""

    async def story(world):
        old = await world.ask("a", LoadOptions(num_ctx=64))
        world.runners.opened.clear()
        other = asyncio.create_task(world.ask("b"))
        await world.load_begins(2)
        larger = asyncio.create_task(world.ask("a", LoadOptions(num_ctx=128)))
        await settle()
        larger.cancel()
        world.runners.opened.set()
        await other
        await settle()
        assert await world.ask("a") is old

    scheduled(story)


def test_what_a_load_is_told(scheduled):
    """08 SCH-7: context and device are decided before the load."""

    async def story(world):
        assert (await world.ask("a")).options == LoadOptions(1000, None, None)
        runner = await world.ask("b", LoadOptions(num_ctx=9, num_thread=2, device="cpu"))
        assert runner.options == LoadOptions(9, 2, "cpu")
        assert (await world.ask("small")).options.num_ctx == 100

    scheduled(story, context_length=1000)


def test_a_model_may_ask_for_the_cpu(scheduled):
    """num_gpu 0 among a model's own parameters; FORERUN_DEVICE for all others."""
    gpus = FakeDevices(lambda: [Device("cpu"), Device("cuda:0", 9, 9), Device("cuda:1", None, 9)])

    async def story(world):
        assert (await world.ask("on_cpu")).options.device == "cpu"
        assert (await world.ask("a")).options.device == "cuda:1"

    scheduled(story, devices=gpus, device="cuda:1")


@pytest.mark.parametrize(
    ("said", "expires_in"),
    [
        ((), 300),
        ((None,), 300),
        ((60.0,), 60),
        ((60.0, None), 60),
        ((FOREVER, None), None),
        ((FOREVER, None, 60.0), 60),
        ((86400.0, FOREVER), None),
    ],
)
def test_how_long_a_model_stays_is_what_was_said_last(scheduled, said, expires_in):
    """08 SCH-4, E09: a request that says nothing changes nothing."""

    async def story(world):
        await world.ask("a")
        for keep_alive_s in said:
            await world.ask("a", keep_alive_s=keep_alive_s)
        (resident,) = await world.scheduler.residents()
        if expires_in is None:
            assert resident.expires_at is None
        else:
            assert abs(resident.expires_at - time.time() - expires_in) < 5
        assert resident.active == 0

    scheduled(story)


def test_a_keep_alive_of_0_unloads_once_idle(scheduled):
    """08 SCH-4, T7."""

    async def story(world):
        async with world.lease("a") as lease:
            await world.ask("a", keep_alive_s=0.0)
            await settle()
            assert not lease.connection.runner.closed
        await world.becomes()
        assert lease.connection.runner.closed

    scheduled(story)


def test_the_idle_time_counts_from_the_last_request(scheduled):
    """08 SCH-4, T7: a lease stops it, and its end starts it anew."""

    async def story(world):
        async def resident():
            (found,) = [r for r in await world.scheduler.residents() if r.name.model == "a"]
            return found

        await world.ask("b", keep_alive_s=FOREVER)
        async with world.lease("a", keep_alive_s=0.05) as lease:
            await asyncio.sleep(0.1)
            assert not lease.connection.runner.closed
            held = await resident()
            assert (held.active, held.expires_at > time.time()) == (1, True)
        await world.becomes("b")
        await world.ask("a", keep_alive_s=100.0)
        first = (await resident()).expires_at
        await asyncio.sleep(0.01)
        await world.ask("a")
        assert first < (await resident()).expires_at <= time.time() + 100

    scheduled(story)
