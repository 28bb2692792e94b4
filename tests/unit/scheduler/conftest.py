"""Stores and stories for tests of the scheduler."""

import asyncio

import pytest

from fixtures.scheduling import World
from fixtures.scripted import scripted_store
from forerun.store.names import ModelName
from forerun.store.store import Store


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scheduling")
    store = Store(scripted_store(folder, names=("a", "b", "c", "d")).models)
    scripted_store(folder, names=("small",), modelfile="PARAMETER num_ctx 100")
    scripted_store(folder, names=("on_cpu",), modelfile="PARAMETER num_gpu 0")
    store.copy(ModelName.parse("a"), ModelName.parse("alias"))
    return store


@pytest.fixture
def scheduled(store):
    """Runs a test's coroutine in a world that is closed at its end."""

    def run(story, **how):
        async def whole():
            world = World(store, **how)
            try:
                async with asyncio.timeout(20):
                    await story(world)
            finally:
                await world.scheduler.close()
                assert world.runners.alive == []
                assert world.scheduler.waiting == 0

        asyncio.run(whole())

    return run
