"""A look into a loaded model's cache is no use of it: nothing is loaded, nothing stays longer."""

import asyncio

import pytest

from forerun.base.errors import BusyError, NotFoundError, RunnerError, StoreError
from forerun.protocol.cache import CacheReport
from forerun.store.names import ModelName

EMPTY = CacheReport(
    context=8192,
    budget=5,
    snapshots=0,
    live_tokens=0,
    live_bytes=0,
    freed_bytes=0,
    as_of_seconds=0.0,
    nodes=[],
)


def cache(world, name, *, clear=False):
    return world.scheduler.cache(ModelName.parse(name), clear=clear)


def shows(runner, looks):
    async def look(clear):
        looks.append(clear)
        return EMPTY

    runner.look = look


def test_a_loaded_model_is_asked_by_any_of_its_names(scheduled):
    async def story(world):
        looks = []
        shows(await world.ask("a"), looks)
        assert await cache(world, "a") == EMPTY
        assert await cache(world, "alias", clear=True) == EMPTY
        assert looks == [False, True]

    scheduled(story)


def test_one_that_is_not_loaded_is_not_loaded_for_it(scheduled):
    """API-14: a 404 that says so; another one for a model that there is none of."""

    async def story(world):
        with pytest.raises(NotFoundError, match=r"^b:latest is not loaded.*`forerun ps`"):
            await cache(world, "b")
        with pytest.raises(NotFoundError, match="'nope:latest' not found"):
            await cache(world, "nope")
        assert world.runners.made == []

    scheduled(story)


def test_a_model_that_left_the_store_is_still_loaded(scheduled, store, monkeypatch):
    async def story(world):
        shows(await world.ask("a"), [])
        monkeypatch.setattr(store, "digest", lambda _: None)
        assert await cache(world, "a") == EMPTY

    scheduled(story)


def test_a_look_does_not_prolong_the_stay(scheduled):
    """SCH-4: idle time counts from the last request."""

    async def story(world):
        runner = await world.ask("a", keep_alive_s=60.0)
        (before,) = await world.scheduler.residents()
        shows(runner, [])
        await cache(world, "a")
        (after,) = await world.scheduler.residents()
        assert (after.expires_at, after.active) == (before.expires_at, 0)

    scheduled(story)


def test_a_look_does_not_keep_a_model_that_leaves(scheduled):
    """SCH-4: its time is up while it is asked; what it says then is that it is gone."""

    async def story(world):
        runner = await world.ask("a", keep_alive_s=0.05)

        async def look(_):
            while runner.alive:
                await asyncio.sleep(0.005)
            raise BusyError("the model was unloaded before its answer was complete; ask again")

        runner.look = look
        with pytest.raises(NotFoundError, match="is not loaded"):
            await cache(world, "a")

    scheduled(story)


def test_one_that_dies_is_not_loaded_any_more(scheduled):
    async def story(world):
        runner = await world.ask("a")

        async def look(_):
            runner.ended.clear()  # nobody has been told yet
            runner.die()
            raise RunnerError("the runner failed: the device is lost")

        runner.look = look
        with pytest.raises(NotFoundError, match="is not loaded"):
            await cache(world, "a")

    scheduled(story)


@pytest.mark.parametrize(
    "error", [BusyError("the model is answering"), RunnerError("did not answer in 15 s")]
)
def test_what_a_loaded_model_says_is_handed_on(scheduled, error):
    async def story(world):
        runner = await world.ask("a")

        async def look(_):
            raise error

        runner.look = look
        with pytest.raises(type(error), match=str(error)):
            await cache(world, "a")

    scheduled(story)


def test_a_damaged_model_is_named_as_such(scheduled, store, monkeypatch):
    async def story(world):
        def damaged(name):
            raise StoreError(f"manifest of {name} is no JSON")

        monkeypatch.setattr(store, "get", damaged)
        with pytest.raises(StoreError, match="manifest of b"):
            await cache(world, "b")

    scheduled(story)


def test_a_closed_scheduler_says_so(scheduled):
    async def story(world):
        await world.scheduler.close()
        with pytest.raises(BusyError, match="shutting down"):
            await cache(world, "a")

    scheduled(story)
