"""Who makes room: 08 SCH-3, G11."""

import math

import pytest

from forerun.scheduler.eviction import Candidate, choose, most_models

TABLE = {
    "idle": Candidate(0, 300, 5.0),
    "idle for longer": Candidate(0, 300, 1.0),
    "idle, short stay": Candidate(0, 10, 9.0),
    "pinned": Candidate(0, math.inf, 0.0),
    "busy": Candidate(1, 10, 0.0),
    "busy and pinned": Candidate(1, math.inf, 0.0),
    "very busy": Candidate(2, 10, 0.0),
}


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["busy", "pinned", "idle"], "idle"),
        (["idle", "idle, short stay"], "idle, short stay"),
        (["idle", "idle for longer"], "idle for longer"),
        (["pinned", "idle"], "idle"),  # evict idle before pinned (G11)
        (["pinned", "busy"], "pinned"),  # but rather than wait for an answer
        (["very busy", "busy", "busy and pinned"], "busy"),
        (["very busy", "busy and pinned"], "busy and pinned"),
        ([], None),
    ],
)
def test_who_goes_first(names, chosen):
    """08 SCH-3: idle first, then the shortest keep-alive, pinned ones last."""
    assert choose((name, TABLE[name]) for name in names) == chosen


@pytest.mark.parametrize(
    ("stated", "gpus", "most"), [(None, 0, 3), (None, 1, 3), (None, 4, 12), (1, 4, 1), (7, 0, 7)]
)
def test_models_at_once(stated, gpus, most):
    """08 SCH-3: three, or three for each GPU."""
    assert most_models(stated, gpus) == most
