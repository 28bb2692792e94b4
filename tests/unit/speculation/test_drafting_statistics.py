"""What a request's statistics say (STA-1, STA-2)."""

from forerun.contract.sink import Drafting
from forerun.speculation.statistics import Statistics


def recorded(*rounds):
    statistics = Statistics()
    for depth, accepted, observed in rounds:
        statistics.round(depth, accepted, observed)
    return statistics


def test_rounds_are_counted_as_they_end_plain_ones_too():
    """STA-1: a resumed round is one of depth 0; the last round of a request counts."""
    drafting = recorded((0, 0, 0), (4, 2, 4), (3, 3, 3)).drafting(["lookup"])
    assert drafting == Drafting(
        drafter="lookup",
        rounds=3,
        drafted=7,
        accepted=5,
        by_position=((2, 2), (2, 2), (1, 2)),
        depths=((0.0, 0), (4.0, 4), (3.0, 3)),
    )


def test_positions_past_a_refusal_or_an_end_were_not_observed():
    """STA-2, RND-8: acceptance by position is conditional; a stop token ends what is judged."""
    drafting = recorded((4, 0, 4), (4, 1, 1)).drafting(["model"])
    assert drafting.by_position == ((1, 2),)
    assert (drafting.drafted, drafting.accepted) == (8, 1)


def test_depth_over_time_is_told_in_up_to_eight_equal_spans():
    """STA-2: mean and largest; no round is lost where they do not divide."""
    drafting = recorded(*[(depth, 0, depth) for depth in range(16)]).drafting(["model"])
    assert drafting.depths == tuple((2 * n + 0.5, 2 * n + 1) for n in range(8))
    uneven = recorded(*[(1, 0, 1)] * 19, (5, 0, 5)).drafting(["model"])
    assert len(uneven.depths) == 8
    assert uneven.depths[0] == (1.0, 1)
    assert uneven.depths[-1] == ((1 + 1 + 5) / 3, 5)


def test_one_line_tells_it_all():
    """STA-2"""
    line = recorded((0, 0, 0), (4, 2, 4), (4, 4, 4), (0, 0, 0)).line()
    assert line == (
        "drafting: 4 rounds, 8 drafted, 6 accepted (0.75), a round 2.00 drafted (most 4) and "
        "1.50 accepted, depth mean/most [0.0/0 4.0/4 4.0/4 0.0/0]"
    )


def test_a_request_without_a_round_has_statistics_too():
    """STA-1: cancelled in prefill, or of no tokens."""
    assert recorded().drafting(["model"]) == Drafting("model", 0, 0, 0, (), ())
    assert "0 rounds" in recorded().line()


def test_drafters_are_named_that_proposed_something():
    """STA-2: of two that take turns perhaps one has; where none has, all could have."""
    statistics, both = recorded((0, 0, 0)), ("model", "lookup")
    assert statistics.drafting(both).drafter == "model+lookup"
    statistics.round(2, 1, 2, "lookup")
    assert statistics.drafting(both).drafter == "lookup"
    statistics.round(2, 1, 2, "model")
    assert statistics.drafting(both).drafter == "model+lookup"
