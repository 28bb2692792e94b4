"""Lines that arbitrary requests do not reach: what went wrong in the middle of something."""

import pytest

from fixtures.layer_kinds import Rig
from fixtures.prefix_invariants import (
    below,
    check,
    check_contents,
    check_live,
    check_within_budget,
)
from forerun.prefix.captures import CaptureRule

NEVER = CaptureRule(interval=1000, before_end=1000)


@pytest.mark.parametrize("look_ahead", [0, 1])
def test_a_close_follows_layers_that_were_rewound_below_the_frontier(look_ahead):
    """02 STR-2, SWI-8: a roll-back that goes further than what was attached cuts the node there."""
    rig = Rig("kv", look_ahead, captures=NEVER)
    rig.run(range(10))
    with rig.prefix.begin(range(8)):
        for layer in (*rig.targets, *rig.drafts):
            assert layer.cache.restore(None, 3)
    layers = [*rig.targets, *rig.drafts]
    check(rig.prefix, rig.caches)
    check_contents(rig.prefix, layers, rig.look_ahead)
    check_live(rig.prefix, layers, rig.look_ahead)
    assert [node.end for node in below(rig.prefix.root)] == [0, 3, 7, 9]


def test_a_user_node_that_lost_its_state_stays_one_when_its_branch_is_captured_again():
    """ATT-4, CMP-3: the capture at the match is nobody's wish, and takes none back."""
    rig = Rig("recurrent", 0, captures=CaptureRule(interval=1000, before_end=4))
    rig.run(range(20))
    (user,) = [node for node in below(rig.prefix.root) if node.user]
    assert user.end == 16
    rows, state = rig.prefix._storage._release(user)
    state.close()  # as where there was no memory for it
    rig.prefix._storage._hold(user, 0, rows)
    found = rig.run([*range(16), 50])
    assert [(capture.offset, capture.user) for capture in found.pending] == [
        (13, True),
        (16, False),
    ]
    check(rig.prefix, rig.caches)
    assert user.user
    assert rig.run([*range(16), 51]).cached == 16


def test_a_border_that_eviction_left_without_a_branch_is_joined_when_it_is_passed():
    """ATT-4, CMP-1: at the capture after it, not only at a close."""
    rig = Rig("recurrent", 0, captures=NEVER)
    shared = list(range(10))
    rig.run([*shared, 20, 21, 22, 23])
    rig.run([*shared, 30, 31, 32, 33])
    (gone,) = [node for node in below(rig.prefix.root) if node.edge[:1] == (20,)]
    rig.prefix._storage.remove(gone)
    assert rig.run([*shared, 30, 31, 40, 41]).cached == 10
    assert sorted(node.end for node in below(rig.prefix.root)) == [0, 12, 13, 13]
    check(rig.prefix, rig.caches)


def test_what_a_broken_request_makes_the_layers_copy_out_is_within_the_budget():
    """EVI-1, 05 REQ-3: layers that cannot go back are emptied, which saves the live path."""
    rig = Rig("recurrent", 0, captures=NEVER, budget_bytes=0)
    rig.run(range(20))
    with pytest.raises(RuntimeError), rig.prefix.begin(range(30)):
        rig.forward(range(25))
        raise RuntimeError("broke")
    assert rig.offset == rig.prefix.snapshot_bytes == 0
    check(rig.prefix, rig.caches)
    check_within_budget(rig.prefix, rig.caches)
