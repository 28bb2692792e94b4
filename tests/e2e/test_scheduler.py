"""The scheduler over real processes: 08 SCH, RUN-5..9, RUN-14, T1-T3; E09, E11, G01-G11."""

import asyncio
import math
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import pytest

from fixtures.scripted import SCRIPTED_RUNNER, scripted_store
from fixtures.server import alive, children
from forerun.api.options import read_keep_alive
from forerun.base.errors import BusyError, ForerunError, RunnerError
from forerun.protocol.events import Chunk
from forerun.protocol.requests import CompletionRequest
from forerun.scheduler.runners import LoadOptions
from forerun.scheduler.scheduler import Scheduler, SchedulerLimits
from forerun.store.names import ModelName
from forerun.store.store import Store

GRACE_S = 1.0


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scheduler")
    scripted_store(folder, names=("slow",), load_ms=1000)
    return scripted_store(folder, names=("a", "b", "c"))


@pytest.fixture
def scheduled(settings):
    """Runs a test's coroutine with a scheduler that is closed at its end."""

    def run(story, **limits):
        async def whole():
            async with asyncio.timeout(250), scheduler_of(settings, **limits) as scheduler:
                await story(scheduler)

        asyncio.run(whole())
        assert runners() == []

    return run


@asynccontextmanager
async def scheduler_of(settings, **limits):
    limits = SchedulerLimits(**{"grace_s": GRACE_S, **limits})
    scheduler = Scheduler(Store(settings.models), settings, limits, module=SCRIPTED_RUNNER)
    try:
        yield scheduler
    finally:
        await scheduler.close()
        assert scheduler.waiting == 0


def runners():
    """Process ids of runners of this process that nobody has reaped."""
    return [pid for pid in children(os.getpid()) if _is_runner(pid)]


def _is_runner(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return SCRIPTED_RUNNER.encode() in file.read()
    except OSError:
        return False


def lease(scheduler, name, *, num_ctx=None, keep_alive=None):
    return scheduler.lease(
        ModelName.parse(name),
        LoadOptions(num_ctx=num_ctx, num_thread=1),
        keep_alive_s=read_keep_alive(keep_alive),
    )


async def answer(held, prompt, **options):
    """The text of one completion on a lease."""
    request = CompletionRequest(prompt=prompt, options={"temperature": 0, **options})
    text = ""
    async for each in held.connection.complete(request):
        held.started()
        if isinstance(each, Chunk):
            text += each.text
    return text.strip()


async def ask(scheduler, name, prompt="SAY:hello", *, options=None, **how):
    async with lease(scheduler, name, **how) as held:
        return await answer(held, prompt, **(options or {}))


async def begins(scheduler, name, prompt):
    """An answer in a task, once it has begun."""
    begun = asyncio.Event()

    async def whole():
        text = ""
        async with lease(scheduler, name) as held:
            async for each in held.connection.complete(CompletionRequest(prompt=prompt)):
                if isinstance(each, Chunk):
                    begun.set()
                    text += each.text
        return text.strip()

    task = asyncio.create_task(whole())
    await begun.wait()
    return task


async def gone(pids, within_s=5.0):
    async with asyncio.timeout(within_s):
        while any(map(alive, pids)):
            await asyncio.sleep(0.01)


def test_three_models_with_room_for_one_are_answered_in_turn(scheduled):
    """G03: A, B and C at once, A again a moment later."""

    async def story(scheduler):
        prompts = {name: f"SAY:I am {name}" for name in "abc"}
        asking = [asyncio.create_task(ask(scheduler, name, prompts[name])) for name in "abc"]
        await asyncio.sleep(0.05)
        asking.append(asyncio.create_task(ask(scheduler, "a", prompts["a"])))
        assert await asyncio.gather(*asking) == ["I am a", "I am b", "I am c", "I am a"]
        assert len(runners()) == 1

    scheduled(story, max_loaded=1)


def test_a_model_in_use_is_not_taken_away(scheduled):
    """G05: B waits and A's answer is whole."""
    story_ = "once upon a time there was a model that nobody took away"

    async def story(scheduler):
        long = await begins(scheduler, "a", f"STEP_MS=20 SAY:{story_}")
        short = asyncio.create_task(ask(scheduler, "b", "SAY:my turn"))
        assert await long == story_
        assert await short == "my turn"

    scheduled(story, max_loaded=1)


def test_only_what_is_fixed_at_a_load_reloads(scheduled):
    """G11, 08 SCH-2."""

    async def story(scheduler):
        await ask(scheduler, "a", num_ctx=256)
        (first,) = runners()
        for temperature in (0, 1.5):
            options = {"temperature": temperature, "top_k": 5, "seed": 3}
            assert await ask(scheduler, "a", options=options, num_ctx=128) == "hello"
        assert runners() == [first]
        async with lease(scheduler, "a", num_ctx=512) as held:
            assert held.status.context_length == 512
            assert held.load_s > 0
        assert runners() != [first]

    scheduled(story)


def test_keep_alive_as_clients_send_it(scheduled):
    """E09, 08 SCH-4, T7: numbers, texts, for ever and not at all; silence changes nothing."""

    async def story(scheduler):
        for value, stays in ((3600, 3600), ("24h", 86400), ("-1m", None), (None, None), (-1, None)):
            await ask(scheduler, "a", keep_alive=value)
            (resident,) = await scheduler.residents()
            if stays is None:
                assert resident.expires_at is None, value
            else:
                assert abs(resident.expires_at - time.time() - stays) < 10, value
        (pid,) = runners()
        await ask(scheduler, "a", keep_alive=0)
        await gone([pid])
        await ask(scheduler, "a", keep_alive="0")
        while await scheduler.residents():
            await asyncio.sleep(0.01)

    scheduled(story, keep_alive_s=math.inf)


def test_a_runner_that_is_killed_is_replaced(scheduled):
    """08 RUN-8, RUN-9: idle or in the middle of an answer."""

    async def story(scheduler):
        await ask(scheduler, "a")
        (pid,) = runners()
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(5):
            while await scheduler.residents():
                await asyncio.sleep(0.01)
        assert runners() == []  # reaped without being asked for
        assert await ask(scheduler, "a") == "hello"
        with pytest.raises(RunnerError, match="the runner failed: ") as caught:
            await ask(scheduler, "a", "DIE_AT=3 SAY:hello")
        assert "\n" not in str(caught.value)
        assert await ask(scheduler, "a") == "hello"

    scheduled(story)


def test_a_runner_that_is_killed_while_it_loads_is_tried_again_alone(scheduled):
    """08 SCH-6: as the system does it when memory runs out."""

    async def story(scheduler):
        await ask(scheduler, "a")
        (idle,) = runners()

        def kill(_):
            if idle in runners():
                (loading,) = set(runners()) - {idle}
                os.kill(loading, signal.SIGKILL)

        options = LoadOptions(num_thread=1)
        async with scheduler.lease(ModelName.parse("slow"), options, report=kill) as held:
            assert await answer(held, "SAY:hello") == "hello"
            assert not alive(idle)

    scheduled(story)


def test_a_runner_that_is_stopped_is_replaced(scheduled):
    """08 SCH-2: it lives and does not answer. RUN-5: its last figures are shown until then."""

    async def story(scheduler):
        await ask(scheduler, "a")
        (pid,) = runners()
        os.kill(pid, signal.SIGSTOP)
        started = time.monotonic()
        (resident,) = await scheduler.residents()
        assert time.monotonic() - started < 2
        assert resident.status.memory.device_total > 0
        assert await ask(scheduler, "a") == "hello"
        assert runners() != [pid]

    scheduled(story, ping_after_s=0.0, ping_s=0.5)


def test_disconnects_and_a_failure_leave_a_working_model(scheduled):
    """E11, 05 THR-2: whoever leaves, queued or in the middle, takes nothing along."""
    chance = random.Random(11)

    async def leave(scheduler):
        task = asyncio.create_task(ask(scheduler, "a", "TOKEN_MS=2 ENDLESS SAY:on and on "))
        await asyncio.sleep(chance.random() * 0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def story(scheduler):
        await ask(scheduler, "a")
        first = runners()
        for _ in range(5):
            await asyncio.gather(*(leave(scheduler) for _ in range(20)))
        assert scheduler.waiting == 0
        with pytest.raises(ForerunError, match=r"told to fail|internal error"):
            await ask(scheduler, "a", "FAIL_AT=2 SAY:hello")
        assert await ask(scheduler, "a") == "hello"
        assert runners() == first
        (resident,) = await scheduler.residents()
        assert resident.active == 0

    scheduled(story)


def test_an_unload_ends_a_runaway_answer(scheduled):
    """G01: in bounded time; the reader is told why."""

    async def story(scheduler):
        runaway = await begins(scheduler, "a", "TOKEN_MS=5 ENDLESS SAY:on and on ")
        (pid,) = runners()
        started = time.monotonic()
        assert await scheduler.unload(ModelName.parse("a"))
        assert time.monotonic() - started < GRACE_S + 2
        assert not alive(pid)
        with pytest.raises(BusyError, match="was unloaded"):
            await runaway

    scheduled(story)


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_memory_comes_back_with_every_unload(scheduled, rounds):
    """G01, T1, 08 RUN-6: an unload returns when the process is gone, and nothing of it stays."""

    async def story(scheduler):
        for _ in range(rounds):
            for name in "ab":
                await ask(scheduler, name)
                (pid,) = runners()
                assert await scheduler.unload(ModelName.parse(name))
                assert not os.path.exists(f"/proc/{pid}")
                assert await scheduler.residents() == []

    scheduled(story)


@pytest.mark.parametrize("phase", ["before", "while it loads", "once it is loaded"])
def test_close_and_load_in_any_order_leave_no_process(settings, phase):
    """T2, T3, 08 RUN-7."""

    async def whole():
        heard = asyncio.Event()
        async with scheduler_of(settings) as scheduler:
            asking = asyncio.create_task(_held(scheduler, heard))
            if phase == "while it loads":
                await heard.wait()
            elif phase == "once it is loaded":
                while not await scheduler.residents():
                    await asyncio.sleep(0.01)
            else:
                await asyncio.sleep(0)
            await scheduler.close()
            assert runners() == []
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            with pytest.raises(BusyError, match="shutting down"):
                await ask(scheduler, "a")
        assert runners() == []

    asyncio.run(whole())


async def _held(scheduler, heard):
    options = LoadOptions(num_thread=1)
    async with scheduler.lease(ModelName.parse("a"), options, report=lambda _: heard.set()):
        await asyncio.sleep(600)


ORPHANS = """
import asyncio, sys
from fixtures.scripted import SCRIPTED_RUNNER, ScriptedSettings
from forerun.scheduler.runners import LoadOptions
from forerun.scheduler.scheduler import Scheduler
from forerun.store.names import ModelName
from forerun.store.store import Store

def told(_):
    print("loading", flush=True)

async def main():
    settings = ScriptedSettings.from_environment()
    scheduler = Scheduler(Store(settings.models), settings, module=SCRIPTED_RUNNER)
    async with scheduler.lease(ModelName.parse("a"), LoadOptions()):
        async with scheduler.lease(ModelName.parse("b"), LoadOptions(), report=told):
            await asyncio.sleep(600)

asyncio.run(main())
"""


def test_no_runner_outlives_a_server_that_is_killed(settings):
    """08 RUN-14: neither the one that is loaded nor the one that loads, within 5 s."""
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHANS],
        env=settings.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with parent:
        assert parent.stdout.readline() == b"loading\n"
        orphans = children(parent.pid)
        assert len(orphans) == 2
        parent.kill()
        parent.wait()
        asyncio.run(gone(orphans))
