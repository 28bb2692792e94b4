"""What a runner can do to the scheduler: 08 SCH-2, SCH-6, RUN-4, RUN-5, RUN-8."""

import asyncio
import logging
import math
from pathlib import Path

import pytest
import torch

from fixtures.fake_runners import KILLED, OUT_OF_MEMORY, FakeDevices
from fixtures.scheduling import Nothing, settle
from forerun.base.errors import (
    ForerunError,
    LoadError,
    MachineError,
    NotFoundError,
    RunnerError,
    UnsupportedError,
)
from forerun.protocol.status import Memory, RunnerStatus
from forerun.runner import loading
from forerun.runner.request import LoadRequest
from forerun.runner.serving import Runner
from forerun.scheduler.devices import Device
from forerun.scheduler.runners import OutOfMemoryError, RunnerProcess
from forerun.store.names import ModelName

FOREVER = math.inf


def test_a_load_that_fails_is_told_to_all_who_wait_and_the_next_one_tries_again(scheduled):
    """08 RUN-4: one line, to each."""

    async def story(world):
        world.runners.fails[:] = ["no such tensor"]
        world.runners.opened.clear()
        asking = [asyncio.create_task(world.ask("a")) for _ in range(3)]
        await world.load_begins()
        await settle()
        world.runners.opened.set()
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [LoadError] * 3
        assert {str(outcome) for outcome in outcomes} == {"no such tensor"}
        assert len({id(outcome) for outcome in outcomes}) == 3
        assert world.runners.made[0].closed
        await world.ask("a")
        assert world.runners.names() == ["a", "a"]

    scheduled(story)


def test_a_bug_in_a_load_is_one_error_and_the_loader_lives(scheduled, caplog):
    async def story(world):
        devices.figures = lambda: 1 // 0
        with pytest.raises(ForerunError, match="internal error: ZeroDivisionError"):
            await world.ask("a")
        devices.figures = lambda: [Device("cpu")]
        await world.ask("a")

    devices = FakeDevices()
    scheduled(story, devices=devices)
    assert "the load of a:latest failed" in caplog.text


@pytest.mark.parametrize("reason", [KILLED, OUT_OF_MEMORY])
def test_a_load_without_memory_is_tried_once_more_with_the_idle_ones_gone(scheduled, reason):
    """08 SCH-6, T5: it says so, or is killed before it can."""

    async def story(world):
        await world.ask("a")
        async with world.lease("b"):
            world.runners.fails[:] = [reason]
            await world.ask("c")
            assert world.runners.names() == ["a", "b", "c", "c"]
            assert await world.loaded() == ["b", "c"]

    scheduled(story)


def test_a_load_without_memory_waits_for_one_that_answers(scheduled):
    """08 SCH-6: answers are not cut for it."""

    async def story(world):
        async with world.lease("a") as lease:
            world.runners.fails[:] = [KILLED]
            waiting = asyncio.create_task(world.ask("b"))
            await settle()
            assert not waiting.done()
            assert not lease.connection.runner.closed
        await waiting
        assert world.runners.names() == ["a", "b", "b"]
        assert await world.loaded() == ["b"]

    scheduled(story)


@pytest.mark.parametrize(("resident", "fails"), [((), [KILLED]), (("a",), [KILLED, KILLED])])
def test_a_load_that_is_killed_again_is_an_error(scheduled, resident, fails):
    """08 SCH-6: once; and not at all if nobody could make room."""

    async def story(world):
        for name in resident:
            await world.ask(name)
        world.runners.fails[:] = fails
        with pytest.raises(RunnerError, match="killed"):
            await world.ask("c")
        assert len(world.runners.made) == len(resident) + len(fails)

    scheduled(story)


def test_a_model_that_cannot_be_loaded_evicts_nobody(scheduled):
    """08 SCH-6 is for memory alone."""

    async def story(world):
        await world.ask("a")
        world.runners.fails[:] = ["no such tensor"]
        with pytest.raises(LoadError):
            await world.ask("b")
        assert world.runners.names() == ["a", "b"]
        assert await world.loaded() == ["a"]

    scheduled(story)


@pytest.mark.parametrize(
    ("flag", "status", "error"),
    [
        (True, 500, OutOfMemoryError),
        (False, 500, MachineError),
        (False, 400, LoadError),
        (False, 404, NotFoundError),
        (False, 501, UnsupportedError),
    ],
)
def test_what_a_runner_says_of_its_failure_is_raised_as_that(monkeypatch, flag, status, error):
    """08 SCH-6, API-14: by fields of its state and not by its words."""

    class Said:
        def lines(self):
            return [b"listening"]

        def watch(self, _stall_s):
            yield RunnerStatus(
                state="failed", reason="no room", failure_status=status, out_of_memory=flag
            )

    process = RunnerProcess("a", Nothing())
    monkeypatch.setattr(process, "_spawn", lambda: (Said(), Said()))
    with pytest.raises(ForerunError, match="no room") as caught:
        process.load()
    assert (type(caught.value), caught.value.status) == (error, status)


@pytest.mark.parametrize(
    ("error", "flag"),
    [(torch.OutOfMemoryError("CUDA"), True), (MemoryError(), True), (RuntimeError("no"), False)],
)
def test_a_runner_says_whether_memory_ran_out(monkeypatch, error, flag):
    """08 SCH-6."""

    def breaks(*_):
        raise error

    monkeypatch.setattr(loading, "load", breaks)
    runner = Runner(LoadRequest("tiny", Path()))
    runner._load()
    runner._thread.close()
    assert (runner.state.status.state, runner.state.status.out_of_memory) == ("failed", flag)


def test_a_model_that_is_replaced_while_it_loads_is_loaded_anew(scheduled, store):
    """08 SCH-2: a process loads by name; what it has is what the name meant, or it goes."""
    moving = ModelName.parse("moving")
    store.copy(ModelName.parse("a"), moving)

    async def story(world):
        def replace(_):
            world.runners.at_end = lambda _: None
            store.copy(ModelName.parse("b"), moving)

        world.runners.at_end = replace
        async with world.lease("moving") as lease:
            assert lease.model.digest == store.get(ModelName.parse("b")).digest
            assert lease.connection.runner is world.runners.made[1]
        assert world.runners.made[0].closed
        await world.scheduler.unload(moving)
        world.runners.at_end = lambda _: store.delete(moving)
        async with world.lease("moving") as lease:  # removed meanwhile: it goes on
            assert not lease.connection.runner.closed

    scheduled(story)


def test_a_runner_that_dies_is_noticed(scheduled, caplog):
    """08 RUN-8: without a request on it; the next one loads anew."""
    caplog.set_level(logging.INFO, "forerun")

    async def story(world):
        runner = await world.ask("a")
        await asyncio.to_thread(runner.die)
        await world.becomes()
        assert runner.closed
        assert await world.ask("a") is not runner

    scheduled(story)
    (death, _) = [record for record in caplog.records if record.message == "model unloaded"]
    assert death.fields["reason"] == "died"
    assert death.fields["error"] == "the device is lost"


def test_a_runner_that_has_just_died_is_not_given_out(scheduled):
    """08 RUN-8: although nobody has been told yet."""

    async def story(world):
        runner = await world.ask("a")
        runner.alive = False
        assert await world.ask("a") is not runner

    scheduled(story)


def test_a_runner_that_does_not_answer_is_replaced(scheduled):
    """08 SCH-2: it is asked when it has not been heard from for a while."""

    async def story(world):
        runner = await world.ask("a")
        assert await world.ask("a") is runner
        assert runner.pings == 2
        runner.dumb = True
        assert await world.ask("a") is not runner
        assert runner.closed

    scheduled(story, ping_after_s=0.0)


def test_a_runner_heard_from_lately_is_not_asked(scheduled):
    async def story(world):
        runner = await world.ask("a")
        await world.ask("a")
        assert runner.pings == 0

    scheduled(story, ping_after_s=60.0)


def test_figures_are_fresh_or_the_last_ones(scheduled):
    """08 RUN-5."""

    async def story(world):
        runner = await world.ask("a")
        world.runners.memory = Memory(caches=5)
        assert [r.status.memory.caches for r in await world.scheduler.residents()] == [5]
        runner.dumb = True
        world.runners.memory = Memory(caches=6)
        (resident,) = await world.scheduler.residents()
        assert resident.status.memory.caches == 5
        assert (resident.device, resident.active) == ("cpu", 0)

    scheduled(story)
