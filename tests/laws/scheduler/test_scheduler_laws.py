"""Whatever requests come, go and fail: 08 SCH-1, SCH-3, SCH-8, RUN-7, 05 THR-2, G01, G03, G05.

Laws: no two loads run at once; never more processes than models are allowed; a model that is held
is not unloaded, unless by name, by a crash or at the end; nobody waits for ever; in the end nobody
waits, nothing is held and no process is left.
"""

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.fake_runners import KILLED, FakeDevices, FakeRunners
from fixtures.scripted import scripted_store
from forerun.base.errors import ForerunError
from forerun.scheduler.runners import LoadOptions
from forerun.scheduler.scheduler import Scheduler, SchedulerLimits
from forerun.store.names import ModelName
from forerun.store.store import Store

NAMES = ("a", "b", "c", "d", "alias")
FOREVER = float("inf")
TICK_S = 0.001


@dataclass(frozen=True)
class Client:
    """One request. Times are in ticks; `cancel` counts from the start, None: it stays."""

    model: str
    start: int
    holds: int
    keep_alive_s: float | None
    num_ctx: int | None
    cancel: int | None


@dataclass(frozen=True)
class Disturbance:
    kind: str
    at: int
    model: str


CLIENTS = st.builds(
    Client,
    model=st.sampled_from(NAMES),
    start=st.integers(0, 12),
    holds=st.integers(0, 5),
    keep_alive_s=st.sampled_from([None, 0.0, 0.002, 300.0, FOREVER]),
    num_ctx=st.sampled_from([None, None, 64, 256]),
    cancel=st.none() | st.integers(0, 12),
)
DISTURBANCES = st.builds(
    Disturbance,
    kind=st.sampled_from(["unload", "kill", "forget", "residents", "close"]),
    at=st.integers(0, 20),
    model=st.sampled_from(NAMES),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    store = Store(scripted_store(tmp_path_factory.mktemp("laws"), names=NAMES[:-1]).models)
    store.copy(ModelName.parse("a"), ModelName.parse("alias"))
    return store


class Nothing:
    def environment(self):
        return {}


class World:
    """A scheduler over fake processes, and what became of each client."""

    def __init__(self, store, *, most, fails=()):
        self.runners = FakeRunners(load_s=TICK_S, fails=list(fails))
        limits = SchedulerLimits(
            max_loaded=most, grace_s=3 * TICK_S, ping_after_s=2 * TICK_S, ping_s=1
        )
        self.scheduler = Scheduler(
            store, Nothing(), limits, devices=FakeDevices(), start=self.runners
        )
        self.store = store
        self.cut_on_purpose = False
        self.wrong = []

    async def client(self, client):
        await asyncio.sleep(client.start * TICK_S)
        options = LoadOptions(num_ctx=client.num_ctx)
        async with self.scheduler.lease(
            ModelName.parse(client.model), options, keep_alive_s=client.keep_alive_s
        ) as lease:
            runner = lease.connection.runner
            runner.held += 1
            try:
                if runner.name != client.model and {runner.name, client.model} != {"a", "alias"}:
                    self.wrong.append((client, runner.name))
                if runner.closed and not self.cut_on_purpose:
                    self.wrong.append((client, "closed"))
                lease.started()
                await asyncio.sleep(client.holds * TICK_S)
                return "ok"
            finally:
                runner.held -= 1

    async def run_client(self, client):
        task = asyncio.create_task(self.client(client))
        if client.cancel is not None:
            asyncio.get_running_loop().call_later(
                (client.start + client.cancel) * TICK_S, task.cancel
            )
        try:
            return await task
        except asyncio.CancelledError:
            return "cancelled"
        except ForerunError as error:
            return type(error).__name__

    async def disturb(self, disturbance):
        await asyncio.sleep(disturbance.at * TICK_S)
        name = ModelName.parse(disturbance.model)
        if disturbance.kind == "residents":
            await self.scheduler.residents()
            return
        self.cut_on_purpose = self.cut_on_purpose or disturbance.kind != "forget"
        if disturbance.kind == "unload":
            await self.scheduler.unload(name)
        elif disturbance.kind == "kill":
            for runner in self.runners.alive[:1]:
                if not runner.loading:
                    await asyncio.to_thread(runner.die)
        elif disturbance.kind == "forget":
            await self.scheduler.forget(self.store.get(name).digest)
        else:
            await self.scheduler.close()

    async def run(self, clients, disturbances):
        async with asyncio.timeout(10):
            outcomes, *_ = await asyncio.gather(
                asyncio.gather(*map(self.run_client, clients)), *map(self.disturb, disturbances)
            )
            residents = await self.scheduler.residents()
            assert all(resident.active == 0 for resident in residents)
            assert self.scheduler.waiting == 0
            await self.scheduler.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, others
        return outcomes

    def check(self, most):
        assert not self.wrong
        assert self.runners.alive == []
        assert all(runner.closed for runner in self.runners.made)
        assert self.runners.most_loading <= 1
        assert self.runners.most_alive <= most
        if not self.cut_on_purpose:
            assert [runner.cut for runner in self.runners.made] == [0] * len(self.runners.made)


@settings(max_examples=60)
@given(clients=st.lists(CLIENTS, min_size=1, max_size=8), most=st.integers(1, 3))
def test_without_failures_everybody_who_stays_is_served(store, clients, most):
    """SCH-8, SCH-3, THR-2: cancelled at any point a request leaves nothing behind."""
    world = World(store, most=most)
    outcomes = asyncio.run(world.run(clients, ()))
    for client, outcome in zip(clients, outcomes, strict=True):
        assert outcome in (("ok",) if client.cancel is None else ("ok", "cancelled"))
    world.check(most)


@settings(max_examples=60)
@given(
    clients=st.lists(CLIENTS, min_size=1, max_size=8),
    disturbances=st.lists(DISTURBANCES, max_size=4),
    fails=st.lists(st.sampled_from(["", "", KILLED, "no such tensor"]), max_size=6),
    most=st.integers(1, 3),
)
def test_whatever_fails_nothing_is_left_behind(store, clients, disturbances, fails, most):
    """RUN-7, G01: unloads, crashes, failed loads and the end, in any order."""
    world = World(store, most=most, fails=fails)
    outcomes = asyncio.run(world.run(clients, disturbances))
    known = {"ok", "cancelled", "LoadError", "RunnerError", "KilledError", "BusyError"}
    assert set(outcomes) <= known
    world.check(most)
