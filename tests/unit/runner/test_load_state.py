"""The state of a load: 05 HTP-2, 08 RUN-4."""

import asyncio
import threading

import pytest

from forerun.protocol.status import RunnerStatus
from forerun.runner.state import LoadState


async def watched(state, seen):
    async for status in state.changes():
        seen.append((status.state, status.phase, status.reason))


def test_a_watcher_sees_the_state_now_and_every_change_from_another_thread():
    async def story():
        state, seen = LoadState(), []
        watcher = asyncio.create_task(watched(state, seen))
        await asyncio.sleep(0)
        await asyncio.to_thread(state.progress, "weights", 0.5)
        while len(seen) < 2:
            await asyncio.sleep(0)
        await asyncio.to_thread(state.ready, RunnerStatus(state="ready"))
        await asyncio.wait_for(watcher, 5)
        return seen

    assert asyncio.run(story()) == [
        ("loading", "starting", ""),
        ("loading", "weights", ""),
        ("ready", "", ""),
    ]


def test_a_watcher_that_comes_late_sees_the_end():
    state, seen = LoadState(), []
    state.fail("no such tensor")
    asyncio.run(watched(state, seen))
    assert seen == [("failed", "", "no such tensor")]


def test_a_load_ends_once():
    state = LoadState()
    state.fail("no such tensor")
    with pytest.raises(AssertionError):
        state.ready(RunnerStatus(state="ready"))


def test_a_watcher_that_leaves_is_forgotten():
    async def story():
        state = LoadState()
        changes = state.changes()
        await anext(changes)
        await changes.aclose()
        return state

    state = asyncio.run(story())
    thread = threading.Thread(target=state.fail, args=("late",))  # no loop is left to wake
    thread.start()
    thread.join()
    assert state.status.reason == "late"
