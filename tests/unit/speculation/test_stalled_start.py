"""A stall in the first plain round does not make drafts that nobody accepts look cheap (DEP-1)."""

import pytest

from forerun.speculation.depth import DepthController


@pytest.mark.parametrize("stall", [1.0, 1.5, 4.0, 50.0])
def test_a_drafter_that_is_always_wrong_is_parked_after_any_start(stall):
    """The first sample is taken as it is (DEP-2), and depth 0 has one before depth 1 is tried."""
    controller, drafted, last = DepthController(), 0, None
    for number in range(500):
        depth = controller.scheduled
        if depth == last:  # DEP-3
            slow = stall if number < 3 else 1.0
            controller.cost(depth, slow * (2.4 + 1.1 * depth))
        last = depth
        if depth:
            controller.outcome(0, depth)
        drafted += controller.next()
    assert drafted < 40
