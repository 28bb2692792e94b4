"""Which of two drafters proposes (DRF-8, decision 0019)."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from forerun.contract.drafter import DraftSession
from forerun.speculation.contest import Contest
from forerun.speculation.costs import Costs
from forerun.speculation.depth import DepthController
from forerun.speculation.sources import Source, Sources


class Graded:
    """A session that says how sure it is, and nothing else."""

    def __init__(self, grade: int | None) -> None:
        self.said = grade

    def grade(self, current: int) -> int | None:
        del current
        return self.said


def source(name: str, grade: int | None, depths: Sequence[DepthController]) -> Source:
    session: DraftSession = Graded(grade)  # type: ignore[assignment]
    return Source(name, session, depths)


def learnt(rate: float, cost: float) -> DepthController:
    """A controller that has seen drafts accepted at `rate`, each at `cost` of a plain step."""
    controller = DepthController()
    for number in range(200):
        controller.outcome(int(number % 10 < 10 * rate), 1)
        controller.cost(0, 10.0)
        controller.cost(1, 10.0 * (1 + cost))
        controller.next()
    return controller


def test_who_is_not_known_yet_is_tried() -> None:
    """DRF-8: the first one before the second, since it can go on everywhere."""
    contest = Contest()
    assert [contest.second(None, None) for _ in range(3)] == [False] * 3
    assert contest.second(100.0, None)
    assert not contest.second(None, 100.0)


def test_the_faster_one_proposes_and_the_other_ever_more_rarely() -> None:
    """DRF-8, after DEP-6: it is tried at intervals that double to 512."""
    contest = Contest()
    seconds = [contest.second(100.0, 200.0) for _ in range(5000)]
    tries = [round_ for round_, second in enumerate(seconds) if not second]
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert tries[0] == 3
    assert gaps[:7] == [8, 16, 32, 64, 128, 256, 512]
    assert set(gaps[7:]) == {512}


def test_a_change_of_the_faster_one_is_followed_at_once() -> None:
    """DRF-8"""
    contest = Contest()
    for _ in range(2000):
        contest.second(100.0, 200.0)
    assert not contest.second(200.0, 100.0)
    later = [contest.second(200.0, 100.0) for _ in range(4)]
    assert later.count(True) == 1  # the interval starts over


def test_a_drafter_that_knows_nothing_leaves_the_round_to_the_other() -> None:
    """DRF-8: whatever the speeds; and where neither knows how to go on, nobody is chosen."""
    fast, slow = learnt(1.0, 0.1), learnt(0.1, 1.0)
    choice = Sources([source("a", 0, [slow]), source("b", None, [fast])], [Contest()]).choose(7)
    assert choice is not None
    assert choice.source.name == "a"
    assert Sources([source("a", None, [slow]), source("b", None, [fast])]).choose(7) is None


@pytest.mark.parametrize(("grade", "chosen"), [(0, "model"), (1, "lookup")])
def test_a_grade_is_judged_for_itself(grade: int, chosen: str) -> None:
    """DRF-8, DEP-11: what agreed for long is preferred to the model's draft, other matches not."""
    model = source("model", 0, [learnt(0.7, 0.5)])
    lookup = source("lookup", grade, [learnt(0.2, 0.1), learnt(1.0, 0.1)])
    choice = Sources([model, lookup], [Contest(), Contest()]).choose(7)
    assert choice is not None
    assert choice.source.name == chosen
    assert choice.depth is choice.source.depths[grade if chosen == "lookup" else 0]


def test_a_plain_round_says_its_cost_of_every_drafter_and_a_drafted_one_of_its_own() -> None:
    """DEP-2: grades of a drafter share what rounds cost."""
    shared = Costs()
    first = source("model", 0, [DepthController()])
    second = source("lookup", 0, [DepthController(costs=shared), DepthController(costs=shared)])
    sources = Sources([first, second], [Contest(), Contest()])
    sources.cost(None, 0, 10.0)
    sources.cost("lookup", 3, 14.0)
    costs = [depth.report().costs for each in sources for depth in each.depths]
    assert costs == [{0: 10.0}, {0: 10.0, 3: 14.0}, {0: 10.0, 3: 14.0}]


def test_speed_is_unknown_until_two_costs_are_known_and_then_hopeful() -> None:
    """DEP-1, DEP-4: drafts that nobody has judged count as right; the selected depth says it."""
    controller = DepthController()
    controller.cost(0, 10.0)
    controller.next()
    assert controller.speed is None
    controller.cost(1, 12.5)
    controller.next()
    assert controller.speed == pytest.approx(160.0)
    for _ in range(60):
        controller.outcome(0, 1)
    controller.next()
    assert controller.speed == pytest.approx(100.0)


def test_a_primary_that_never_pays_does_not_keep_the_other_from_being_asked() -> None:
    """DRF-8: its drafts are dearer than two plain steps, so that nobody ever judges them."""
    model = DepthController()
    lookup = learnt(1.0, 0.1)
    sources = Sources([source("model", 0, [model]), source("lookup", 0, [lookup])], [Contest()])
    chosen = []
    for _ in range(40):
        choice = sources.choose(7)
        assert choice is not None
        chosen.append(choice.source.name)
        if choice.source.name == "model":
            sources.cost("model", choice.depth.scheduled, 10.0 + 30.0 * choice.depth.scheduled)
        choice.depth.next()
    assert chosen.count("lookup") > 30


def test_each_grade_has_a_contest_of_its_own() -> None:
    """DRF-8: what is tried for one grade is not tried for another."""
    first, second = Contest(), Contest()
    model = source("model", 0, [learnt(0.7, 0.5)])
    lookup = source("lookup", 1, [learnt(0.2, 0.1), learnt(1.0, 0.1)])
    sources = Sources([model, lookup], [first, second])
    tried = [round_ for round_ in range(20) if sources.choose(7).source.name == "model"]  # type: ignore[union-attr]
    assert tried == [3, 11]
    assert [first.second(1.0, 2.0) for _ in range(4)] == [True, True, True, False]
