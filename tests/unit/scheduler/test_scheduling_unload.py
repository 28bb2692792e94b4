"""Unloads, the end, and what is told: 08 RUN-4, RUN-6, RUN-7, T2, T3; G01."""

import asyncio
import logging
import math
import threading
import time
from contextlib import asynccontextmanager

import pytest

from fixtures.fake_runners import FakeRunners
from fixtures.scheduling import settle
from forerun.base.errors import BusyError, NotFoundError
from forerun.protocol.status import Memory
from forerun.store.names import ModelName

FOREVER = math.inf


def test_unload_tells_whether_there_was_anything(scheduled):
    """08 RUN-6: it returns when the process is gone."""

    async def story(world):
        runner = await world.ask("a", keep_alive_s=FOREVER)
        assert await world.scheduler.unload(ModelName.parse("a"))
        assert runner.closed
        assert not await world.scheduler.unload(ModelName.parse("a"))
        with pytest.raises(NotFoundError):
            await world.scheduler.unload(ModelName.parse("nobody"))

    scheduled(story)


def test_a_model_that_is_no_longer_in_the_store_can_be_unloaded(store, scheduled):
    """G01: as `forerun rm` leaves it, which changes the store beside the server."""
    name = ModelName.parse("gone")

    async def story(world):
        store.copy(ModelName.parse("a"), name)
        await world.ask("gone", keep_alive_s=FOREVER)
        store.delete(name)
        assert await world.scheduler.unload(name)
        await world.becomes()
        with pytest.raises(NotFoundError):
            await world.scheduler.unload(name)

    scheduled(story)


@asynccontextmanager
async def unloading(world, name):
    async with world.lease(name) as lease:
        task = asyncio.create_task(world.scheduler.unload(ModelName.parse(name)))
        await settle()
        yield lease.connection.runner, task


def test_an_unload_lets_answers_finish(scheduled):
    """G01: for a while; a request that comes meanwhile has a new runner."""

    async def story(world):
        async with unloading(world, "a") as (runner, task):
            behind = asyncio.create_task(world.ask("a"))
            await settle()
            assert not runner.closed
            assert await world.loaded() == []
            assert world.runners.names() == ["a"]  # its memory is not free yet
        assert await task
        assert runner.cut == 0
        assert await behind is not runner

    scheduled(story, grace_s=10.0)


def test_an_unload_ends_in_bounded_time(scheduled):
    """G01: a runaway answer is cut."""

    async def story(world):
        async with unloading(world, "a") as (runner, task):
            second = asyncio.create_task(world.scheduler.unload(ModelName.parse("a")))
            assert await asyncio.gather(task, second) == [True, True]
            assert runner.cut == 0  # by the test's own account: nothing was told to count
            assert runner.closed

    scheduled(story, grace_s=0.3)


def test_an_unload_ends_a_load(scheduled):
    """G01: whoever waits for it is told."""

    async def story(world):
        world.runners.opened.clear()
        asking = asyncio.create_task(world.ask("a"))
        await world.load_begins()
        assert await world.scheduler.unload(ModelName.parse("a"))
        with pytest.raises(BusyError, match="unloaded while it was loading"):
            await asking
        world.runners.opened.set()
        await world.ask("a")

    scheduled(story)


def test_a_model_that_left_the_store_goes_once_idle(scheduled, store):
    digest = store.get(ModelName.parse("a")).digest

    async def story(world):
        async with world.lease("a", keep_alive_s=FOREVER) as lease:
            await world.scheduler.forget(digest)
            await world.ask("a", keep_alive_s=FOREVER)
            assert not lease.connection.runner.closed
        await world.becomes()
        runner = await world.ask("a", keep_alive_s=FOREVER)
        await world.scheduler.forget(digest)
        assert runner.closed
        await world.scheduler.forget(digest)

    scheduled(story)


def test_close_ends_loads_waits_and_answers(scheduled):
    """08 RUN-7, T2: with a load under way; T3: and refuses what comes later."""

    async def story(world):
        async with world.lease("a") as lease:
            world.runners.opened.clear()
            asking = [asyncio.create_task(world.ask(name)) for name in "bbc"]
            await world.load_begins(2)
            await asyncio.gather(world.scheduler.close(), world.scheduler.close())
            assert world.runners.alive == []
            assert lease.connection.runner.closed
        for each in asking:
            with pytest.raises(BusyError, match="shutting down"):
                await each
        with pytest.raises(BusyError, match="shutting down"):
            await world.ask("a")
        await world.scheduler.close()

    scheduled(story)


def test_close_does_not_wait_for_the_grace_of_an_unload(scheduled):
    async def story(world):
        async with unloading(world, "a") as (runner, task):
            behind = asyncio.create_task(world.ask("b"))
            await settle()
            async with asyncio.timeout(5):
                await world.scheduler.close()
            assert runner.closed
            await task
            with pytest.raises(BusyError):
                await behind

    scheduled(story, grace_s=600.0)


def test_a_close_that_is_cancelled_goes_on(scheduled):
    """08 RUN-7."""

    async def story(world):
        runner = await world.ask("a")
        closing = asyncio.create_task(world.scheduler.close())
        await asyncio.sleep(0)
        closing.cancel()
        await world.scheduler.close()
        assert runner.closed

    scheduled(story)


@pytest.mark.parametrize("ticks", range(6))
def test_close_in_any_moment_of_a_load(scheduled, ticks):
    """08 RUN-7, T2: before, during and after the start of a process."""

    async def story(world):
        asking = asyncio.create_task(world.ask("a"))
        for _ in range(ticks):
            await asyncio.sleep(0.001)
        await world.scheduler.close()
        assert world.runners.alive == []
        await asyncio.gather(asking, return_exceptions=True)

    scheduled(story)


@pytest.mark.parametrize("end", ["unload", "close"])
def test_a_model_that_is_ready_too_late_is_not_given_out(scheduled, end):
    """08 RUN-7, T2: it was ended in the moment in which its load was over."""

    async def story(world):
        loop = asyncio.get_running_loop()

        def at_end(runner):
            how = world.scheduler.unload(ModelName.parse("a"))
            if end == "close":
                how.close()
                how = world.scheduler.close()
            asyncio.run_coroutine_threadsafe(how, loop)
            while not runner.closed:
                time.sleep(0.001)

        world.runners.at_end = at_end
        with pytest.raises(BusyError, match=r"unloaded while|shutting down"):
            await world.ask("a")
        assert await world.loaded() == []

    scheduled(story)


def test_progress_is_heard_in_the_loops_thread(scheduled):
    """08 RUN-4: also by those who come in the middle of a load."""
    heard, threads = [], set()

    def report(status):
        heard.append(status.phase)
        threads.add(threading.current_thread())

    async def story(world):
        world.runners.opened.clear()
        first = asyncio.create_task(world.ask("a", report=report))
        await world.load_begins()
        await settle()
        second = asyncio.create_task(world.ask("a", report=report))
        await settle()
        world.runners.opened.set()
        await asyncio.gather(first, second)

    scheduled(story)
    assert heard == ["loading weights"] * 2
    assert threads == {threading.current_thread()}


def test_a_lease_tells_how_long_the_load_took(scheduled):
    async def story(world):
        world.runners.load_s = 0.05
        async with world.lease("a") as lease:
            assert 0.05 <= lease.load_s < 10
            assert lease.status.state == "ready"

    scheduled(story)


def test_loads_and_unloads_are_one_log_line_each(scheduled, caplog):
    caplog.set_level(logging.INFO, "forerun")
    runners = FakeRunners(memory=Memory(device_total=7))

    async def story(world):
        await world.ask("a")
        await world.scheduler.unload(ModelName.parse("a"))

    scheduled(story, runners=runners)
    loaded, unloaded = (record for record in caplog.records if hasattr(record, "fields"))
    assert (loaded.message, unloaded.message) == ("model loaded", "model unloaded")
    assert loaded.fields["model"] == unloaded.fields["model"] == "a:latest"
    assert loaded.fields["memory"] == unloaded.fields["memory"] == 7
    assert loaded.fields["seconds"] >= 0
    assert unloaded.fields["reason"] == "unload"
    assert "error" not in unloaded.fields
