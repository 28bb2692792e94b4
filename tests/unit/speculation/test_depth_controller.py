"""The depth controller by simulation: a machine of known costs, a drafter of known acceptance.

DEP-10's traces. Costs are in milliseconds a round, w = 1 + depth rows; no clock is read.
"""

import random
from itertools import pairwise

import pytest

from forerun.speculation.acceptance import Acceptance
from forerun.speculation.costs import Costs
from forerun.speculation.depth import LIMIT, DepthController

FALLING = (0.90, 0.82, 0.72, 0.60, 0.48, 0.40, 0.34, 0.29, 0.25, 0.21)
POOR = (0.4,) * LIMIT
GOOD = (0.95,) * LIMIT
WRONG = (0.0,) * LIMIT


def near_flat(depth):
    return 210 + 2.6 * (depth + 1)


def steep(depth):
    return 30 + 19 * (depth + 1)


class Machine:
    """Runs rounds at the depths that its controller schedules."""

    def __init__(self, cost, acceptance, controller=None, seed=0):
        self.cost, self.acceptance = cost, acceptance
        self.controller = controller or DepthController()
        self.random = random.Random(seed)
        self.depths = []

    def run(self, rounds):
        """The depths of these rounds."""
        for _ in range(rounds):
            depth = self.controller.scheduled
            self.depths.append(depth)
            accepted = 0
            while accepted < depth and self.random.random() < self._rate(accepted):
                accepted += 1
            self.controller.cost(depth, self.cost(depth))
            self.controller.outcome(accepted, depth)
            self.controller.next()
        return self.depths[-rounds:]

    def _rate(self, index):
        return self.acceptance[min(index, len(self.acceptance) - 1)]


def settled(machine, rounds=600):
    """The depth that most of the last rounds have, which probes are not among."""
    depths = machine.run(rounds)[-100:]
    return max(set(depths), key=depths.count)


def parked(cost=steep, acceptance=WRONG):
    """A machine that has settled on depth 0 and just probed, as seldom as it ever does."""
    machine = Machine(cost, acceptance)
    machine.run(2000)
    assert machine.controller.report().probe_interval == 512
    while machine.run(1) == [0]:
        pass
    return machine


def test_a_flat_cost_makes_it_deep():
    """DEP-1, DEP-10: near-flat cost, falling acceptance."""
    assert settled(Machine(near_flat, FALLING)) >= 5


def test_a_steep_cost_keeps_it_shallow():
    """DEP-9, DEP-10: the same acceptance, where acceptance alone would go deep."""
    assert settled(Machine(steep, FALLING)) <= 4


def test_a_poor_draft_on_a_steep_cost_is_not_used():
    """DEP-10: and what a plain round costs is known by measurement."""
    machine = Machine(steep, POOR)
    assert settled(machine) == 0
    assert machine.controller.report().costs[0] == pytest.approx(steep(0))


def test_it_measures_a_plain_round_first_and_then_a_single_draft():
    """DEP-6, DEP-10: a fresh controller starts at depth 0 (DEP-7)."""
    assert Machine(near_flat, GOOD).run(2) == [0, 1]


def test_nothing_is_chosen_before_two_depths_have_a_cost():
    """DEP-1: one cost compares with nothing, whatever acceptance says."""
    controller = DepthController()
    for _ in range(50):
        controller.outcome(1, 1)
    assert controller.next() == 0
    controller.cost(0, 10.0)
    assert controller.report().speeds == ()
    controller.cost(1, 10.0)
    assert len(controller.report().speeds) == 3


@pytest.mark.parametrize("acceptance", [FALLING, POOR, GOOD, WRONG], ids=str)
@pytest.mark.parametrize("cost", [near_flat, steep])
def test_it_is_never_deeper_than_one_past_what_it_trusts(cost, acceptance):
    """DEP-1, DEP-10, DEP-15: nor than sixteen rows hold."""
    machine = Machine(cost, acceptance, seed=1)
    for _ in range(800):
        trusted = len(machine.controller.report().rates)
        assert machine.controller.scheduled <= min(trusted + 1, LIMIT)
        machine.run(1)


def test_it_never_searches_past_the_widest_invariant_round():
    """DEP-15: a free, perfect draft stops at 15."""
    machine = Machine(lambda _depth: 10.0, (1.0,))
    assert settled(machine, 1500) == LIMIT == 15
    assert max(machine.depths) == LIMIT


def test_a_drafters_own_limit_ends_the_search():
    """DEP-1: a depth that cannot be measured would always look best."""
    machine = Machine(near_flat, GOOD, DepthController(drafter_limit=3))
    assert settled(machine) == 3
    assert max(machine.depths) == 3


def test_of_equally_good_depths_the_smaller_one_is_taken():
    """DEP-1: half the drafts accepted at half a round's cost each is worth nothing."""
    controller = DepthController()
    for _ in range(200):
        controller.outcome(1, 1)
        controller.outcome(1, 1)
    controller.cost(0, 10.0)
    controller.cost(1, 20.0)  # two tokens for twice the time
    controller.cost(2, 30.0)
    assert controller.report().speeds == pytest.approx((100.0, 100.0, 100.0))
    assert controller.next() == 0


def test_one_stall_does_not_wake_a_parked_controller():
    """DEP-2, DEP-10: a plain round of 49 ms among those of 16 ms."""
    machine = parked(lambda depth: 16.0 + 16.0 * depth, (0.6,))
    machine.controller.cost(0, 49.0)
    assert machine.controller.next() == 0
    assert machine.run(400) == [0] * 400


def test_a_parked_controller_probes_ever_less():
    """DEP-6, DEP-10: at last every 512 rounds; counted from then on."""
    machine = parked()
    depths = machine.run(4096)
    assert set(depths) == {0, 1}
    assert depths.count(1) <= 10
    assert machine.run(400) == [0] * 400
    assert machine.controller.report().probe_interval == 512


def test_probes_come_after_intervals_that_double():
    """DEP-6: 4, 8, 16, ... rounds while the selection stays what it is."""
    machine = Machine(steep, WRONG)
    machine.run(40)  # ten refused drafts make the first position trusted; now depth 2 is unknown
    machine.controller.cost(2, steep(2))
    machine.run(2000)
    probes = [at for at, depth in enumerate(machine.depths) if depth and at > 40]
    gaps = [b - a for a, b in pairwise(probes)]
    assert all(b == min(2 * a, 512) for a, b in pairwise(gaps))
    assert gaps[-1] == 512


def test_it_engages_again_when_drafts_become_right():
    """DEP-6, DEP-10: a probe finds out, and the interval begins at 4 again."""
    machine = parked(near_flat, WRONG)
    machine.acceptance = GOOD
    rounds = 0
    while machine.controller.report().probe_interval == 512:
        machine.run(1)
        rounds += 1
        assert rounds < 100 * 512
    assert machine.controller.report().probe_interval == 4
    assert settled(machine) >= 5


def test_it_goes_deeper_when_acceptance_improves():
    """DEP-10"""
    machine = Machine(near_flat, (0.9, 0.1))
    shallow = settled(machine)
    machine.acceptance = GOOD
    assert settled(machine, 6000) > shallow


def test_what_it_has_learnt_outlives_a_request():
    """DEP-7: the next request starts at the depth that was scheduled last."""
    machine = Machine(near_flat, FALLING)
    machine.run(600)
    scheduled = machine.controller.scheduled
    assert scheduled > 0
    assert Machine(near_flat, FALLING, machine.controller).run(1) == [scheduled]


def test_two_controllers_share_nothing():
    """DEP-11: switching between drafters leaves each as it was."""
    deep, other = Machine(near_flat, GOOD), Machine(steep, WRONG)
    deep.run(300)
    before = deep.controller.report()
    other.run(300)
    assert deep.controller.report() == before


def test_a_depth_without_a_cost_is_visited_shallowest_first():
    """DEP-6: here 1 and 2 are unknown, between probes."""
    controller = DepthController()
    for _ in range(10):
        controller.outcome(1, 1)
    controller.cost(0, 10.0)
    assert controller.next() == 1
    controller.cost(1, 100.0)
    assert controller.next() == 2
    controller.cost(2, 100.0)
    assert controller.next() == 0


def test_a_probe_is_one_deeper_than_the_selection():
    """DEP-6: on the fourth round after the selection was made, whatever was probed before."""
    controller = DepthController(drafter_limit=2)
    for _ in range(10):
        controller.outcome(1, 1)
    for depth, took in ((0, 10.0), (1, 100.0), (2, 100.0)):
        controller.cost(depth, took)
    assert [controller.next() for _ in range(8)] == [0, 0, 0, 1, 0, 0, 0, 0]
    for _ in range(40):
        controller.cost(1, 1.0)
    assert [controller.next() for _ in range(4)] == [1, 1, 1, 2]


def test_a_probe_is_not_past_the_limit():
    """DEP-6, DEP-1"""
    controller = DepthController(drafter_limit=1)
    controller.cost(0, 10.0)
    controller.cost(1, 10.0)
    assert {controller.next() for _ in range(20)} == {1}


def test_the_debug_line_tells_all_that_decides():
    """STA-2"""
    controller = DepthController()
    for _ in range(10):
        controller.outcome(1, 1)
    controller.cost(0, 10.0)
    controller.cost(1, 16.0)
    assert controller.report().line() == (
        "draft depth: cost by depth in ms [0:10.00 1:16.00], trusted acceptance [1.00], "
        "expected tokens/s by depth [100 125 188], a probe every 4 rounds"
    )


class TestCosts:
    def test_the_first_sample_is_taken_as_it_is(self):
        """DEP-2, DEP-13"""
        costs = Costs()
        costs.add(3, 12.0)
        assert costs.at(3) == 12.0

    @pytest.mark.parametrize("outlier", [3.0, 1000.0, 0.001])
    def test_one_outlier_moves_a_cost_by_little(self, outlier):
        """DEP-2, DEP-10: 7.5 % at most, up or down."""
        costs = Costs()
        costs.add(0, 100.0)
        costs.add(0, 100.0 * outlier)
        assert abs(costs.at(0) - 100.0) <= 7.5 + 1e-9

    def test_a_small_change_moves_it_by_its_share(self):
        """DEP-2: 0.3 of the distance."""
        costs = Costs()
        costs.add(0, 100.0)
        costs.add(0, 110.0)
        assert costs.at(0) == pytest.approx(103.0)

    @pytest.mark.parametrize("level", [10.0, 50.0, 1000.0])
    def test_sixty_samples_reach_a_new_level(self, level):
        """DEP-10"""
        costs = Costs()
        costs.add(0, 100.0)
        for _ in range(60):
            costs.add(0, level)
        assert costs.at(0) == pytest.approx(level, rel=0.05)

    def test_what_lies_between_is_on_a_line_and_what_lies_outside_is_flat(self):
        """DEP-2"""
        costs = Costs()
        costs.add(6, 40.0)
        costs.add(2, 20.0)
        assert [costs.at(depth) for depth in (0, 2, 3, 5, 6, 9)] == [20, 20, 25, 35, 40, 40]

    def test_what_cannot_be_is_ignored(self):
        """DEP-2: a negative depth, no time, less than none."""
        costs = Costs()
        for depth, took in ((-1, 5.0), (0, 0.0), (0, -1.0)):
            costs.add(depth, took)
        assert costs.measured() == {}


class TestAcceptance:
    def test_ten_outcomes_make_a_rate_trusted(self):
        """DEP-4"""
        acceptance = Acceptance()
        for _ in range(9):
            acceptance.add(2, 2)
        assert acceptance.trusted == 0
        acceptance.add(2, 2)
        assert acceptance.trusted == 2

    def test_the_first_outcome_sets_a_rate_and_later_ones_move_it_by_a_tenth(self):
        """DEP-4"""
        acceptance = Acceptance()
        for _ in range(10):
            acceptance.add(1, 1)
        acceptance.add(0, 1)
        assert acceptance.rates() == pytest.approx((0.9,))

    def test_positions_behind_a_refusal_are_not_observed(self):
        """DEP-4: nor those past what was judged."""
        acceptance = Acceptance()
        for _ in range(10):
            acceptance.add(1, 4)
        assert acceptance.rates() == (1.0, 0.0)
        for _ in range(10):
            acceptance.add(2, 2)
        assert acceptance.trusted == 2

    def test_expected_tokens_add_up_the_chances_to_survive(self):
        """DEP-4, DEP-5: an untrusted position has the rate of the deepest trusted one."""
        acceptance = Acceptance()
        assert acceptance.expected(2) == [1.0, 2.0, 3.0]
        for _ in range(10):
            acceptance.add(1, 2)
        acceptance.add(0, 1)
        rates = acceptance.rates()
        assert rates == pytest.approx((0.9, 0.0))
        for _ in range(5):
            acceptance.add(2, 2)
        first, second = acceptance.rates()
        want = 1 + first + first * second + first * second * second
        assert acceptance.expected(3)[3] == pytest.approx(want)
