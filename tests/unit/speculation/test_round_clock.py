"""Which rounds' times become costs (DEP-3, DEP-12, DEP-14). Times are made up; none is read."""

import pytest

from forerun.speculation.depth import DepthController
from forerun.speculation.round_clock import PartCosts, RoundClock


def sampled(sample):
    """Depth and milliseconds, where one drafter alone is at work."""
    return None if sample is None else sample[1:]


def told(clock, *rounds):
    """The samples that rounds of (seconds from the last start, depth) bring, one for each."""
    at, samples = 0.0, []
    for seconds, depth in rounds:
        at += seconds
        samples.append(sampled(clock.started(at, depth)))
    return samples


def test_two_rounds_of_one_depth_make_a_sample_and_a_change_makes_none():
    """DEP-3: from start to start, credited to the second of the two."""
    samples = told(
        RoundClock(), (0.0, 2), (0.010, 2), (0.020, 2), (0.030, 3), (0.040, 3), (0.050, 0)
    )
    # each sample is of the round before the one that starts
    assert samples == [
        None,
        None,
        (2, pytest.approx(20.0)),
        (2, pytest.approx(30.0)),
        None,
        (3, pytest.approx(50.0)),
    ]


def test_waiting_for_a_reader_is_no_time_of_the_models():
    """DEP-3: what blocked a round is taken from it, and from no other."""
    clock = RoundClock()
    clock.blocked(9.0)  # before the first round
    assert told(clock, (0.0, 1), (0.010, 1)) == [None, None]
    clock.blocked(0.5)
    clock.blocked(0.25)
    assert sampled(clock.started(0.780, 1)) == (1, pytest.approx(20.0))
    assert sampled(clock.started(0.790, 1)) == (1, pytest.approx(10.0))


def test_a_resumed_round_earns_nothing():
    """DEP-3, RND-3: it had no forward of its own. The round behind it compares with it as usual."""
    clock = RoundClock()
    clock.resumed()
    assert told(clock, (0.0, 0), (0.010, 0)) == [None, None]
    clock.resumed()
    assert clock.started(0.011, 0) is None
    assert sampled(clock.started(0.021, 0)) == (0, pytest.approx(10.0))


def test_a_controller_takes_costs_from_neighbours_of_one_depth_alone():
    """DEP-3, DEP-6: through the clock the first scheduled depths are 0, 0, 0 and then 1."""
    clock, controller = RoundClock(), DepthController()
    at, depths = 0.0, []
    for _ in range(6):
        depth = controller.scheduled
        depths.append(depth)
        sample = sampled(clock.started(at, depth))
        if sample is not None:
            controller.cost(*sample)
        at += 0.010 + 0.002 * depth
        controller.outcome(depth, depth)
        controller.next()
    assert depths == [0, 0, 0, 1, 1, 1]
    assert controller.report().costs == {0: pytest.approx(10.0), 1: pytest.approx(12.0)}


class Varying:
    """A drafter whose rounds rarely have a neighbour of their depth."""

    def __init__(self):
        self.clock = RoundClock()
        self.at = 0.0

    def round(self, depth, drafting, forward, rest):
        """Milliseconds of each part; the sample that the round before earned."""
        sample = sampled(self.clock.started(self.at, depth))
        self.clock.parts(drafting=drafting / 1000, forward=forward / 1000)
        self.at += (drafting + forward + rest) / 1000
        return sample

    def end(self):
        return sampled(self.clock.started(self.at, 99))


def test_a_varying_drafters_costs_are_put_together_from_parts():
    """DEP-12: once a round has drafted so much and forwarded so wide before."""
    varying = Varying()
    varying.round(1, 1.0, 10.0, 2.0)
    assert varying.round(3, 3.0, 14.0, 2.0) is None
    assert varying.round(1, 1.0, 10.0, 2.0) is None  # the first time of three drafts
    assert varying.round(3, 3.0, 14.0, 2.0) == (1, pytest.approx(13.0))
    assert varying.end() == (3, pytest.approx(19.0))


def test_a_part_moves_as_an_average_of_its_own_width():
    """DEP-12, DEP-2: a share of 0.3, and no outlier by more than 7.5 %."""
    varying = Varying()
    varying.round(1, 1.0, 10.0, 2.0)
    varying.round(3, 3.0, 14.0, 2.0)
    varying.round(1, 1.0, 100.0, 2.0)
    assert varying.end() == (1, pytest.approx(1.0 + 10.0 * 1.075 + 2.0))


def test_neighbours_of_one_depth_need_no_parts():
    """DEP-12: a time that was measured whole comes before one put together."""
    varying = Varying()
    varying.round(2, 1.0, 10.0, 2.0)
    varying.round(2, 1.0, 20.0, 2.0)
    assert varying.end() == (2, pytest.approx(23.0))


def test_a_resumed_round_teaches_its_parts_alone():
    """DEP-3, DEP-12"""
    varying = Varying()
    for depth in (1, 2, 1):
        varying.round(depth, 1.0, 10.0, 2.0)
    varying.clock.resumed()
    assert varying.end() is None


def test_parts_belong_to_a_round():
    """DEP-12"""
    with pytest.raises(AssertionError):
        RoundClock().parts(drafting=0.1, forward=0.1)


def test_drafters_in_turn_are_told_apart():
    """DEP-3, DEP-12: neighbours are of one drafter; forwards and the rest are common to all."""
    costs = PartCosts()
    clock, at, samples = RoundClock(costs), 0.0, []
    for source, drafting in [("model", 3.0), ("lookup", 0.0)] * 3:
        samples.append(clock.started(at, 2, source))
        clock.parts(drafting=drafting / 1000, forward=0.010)
        at += (drafting + 10.0 + 1.0) / 1000
    assert samples == [
        None,
        None,  # the first forward of this width
        ("lookup", 2, pytest.approx(11.0)),
        ("model", 2, pytest.approx(14.0)),
        ("lookup", 2, pytest.approx(11.0)),
        ("model", 2, pytest.approx(14.0)),
    ]
    later = RoundClock(costs)  # the next request knows what this one learnt
    later.started(0.0, 2, "model")
    later.parts(drafting=0.003, forward=0.010)
    assert later.started(0.014, 0) == ("model", 2, pytest.approx(14.0))
