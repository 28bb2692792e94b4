"""The regression scenarios of spec 02 about what is stored: bytes, copies, eviction.

Scenario 14 is in `test_prefix_conversation.py`.
"""

import pytest

from fixtures.allocations import allocations
from fixtures.checked_rig import CASES, NEVER, STATELESS, CheckedRig, each
from fixtures.layer_kinds import LAYOUTS

PROMPT = list(range(100, 147))


def sizes(rig):
    held = [snapshot for node in rig.nodes for snapshot in node.snapshots]
    return sum(snapshot.size() for snapshot in held if snapshot is not None)


@each(CASES)
def test_scenario_09_the_counter_is_the_sum_of_sizes_through_copy_out_split_and_merge(
    layout, look_ahead
):
    """02 scenario 9: 01 ACC-1, ACC-2. Snapshots that change their node take no old hook along."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 210))
    lazy = rig.prefix.snapshot_bytes
    assert lazy == sizes(rig)
    with rig.prefix.begin([*PROMPT[:21], 1, 2, 3]) as session:  # KV edges are split
        for layer in rig.targets:
            layer.feed([*PROMPT[:21], 1, 2][session.cached :])  # and their tails overwritten
        rig.settle([*PROMPT[:21], 1, 2, 3])
        assert rig.prefix.snapshot_bytes == sizes(rig) > lazy
    rig.run([*PROMPT, *range(200, 210), 5])  # restored, split and merged
    assert rig.prefix.snapshot_bytes == sizes(rig)
    for row in [cache for cache in rig.caches if cache is not None]:
        row.free()  # whatever was still lazy is copied out
    assert rig.prefix.snapshot_bytes == sizes(rig)
    rig.prefix.clear()
    assert rig.prefix.snapshot_bytes == 0


@each(STATELESS)
def test_scenario_10_a_stateless_layer_is_never_missed(layout, look_ahead):
    """02 scenario 10: 01 CTR-2. Nodes are complete without it, and can be split and merged."""
    rig = CheckedRig(layout, look_ahead)
    stateful = len([kind for kind in LAYOUTS[layout] if kind is not None]) + look_ahead
    rig.run(PROMPT, [200, 201])
    rig.run([*PROMPT[:21], 1, 2, 3])
    rig.run([*PROMPT, 200, 201, 5, 6])
    assert {len(node.snapshots) for node in rig.nodes} == {stateful}
    facts = rig.prefix.nodes()[1:]
    assert any(fact.complete for fact in facts)
    ends = {node.end: node for node in rig.nodes}
    for fact in facts:
        whole = all(snapshot is not None for snapshot in ends[fact.end].snapshots)
        assert fact.complete == whole


def test_scenario_18_merges_of_a_long_path_copy_nothing():
    """02 scenario 18: EVI-4, 01 ACC-4. A long stored path is merged node by node, then restored and
    grown by a second request: no more is allocated than the states at its end.
    """
    rig = CheckedRig("hybrid", 1)
    long = list(range(1, 160))
    rig.run(long)  # about 20 nodes
    rig.run(range(5000, 5200))  # whose rows are copied out
    before, stored = len(rig.nodes), rig.prefix.snapshot_bytes
    assert allocations(lambda: rig.prefix.set_budget(stored - 12 * 56)) == []
    assert len(rig.nodes) == before - 12  # they were merged
    rig.check()
    onward = [*long, *range(2000, 2020)]
    with rig.prefix.begin(onward) as session:
        assert session.cached == 158
        rig.forward(onward[:-1])
        rig.settle(onward)
        assert allocations(session.attach) == []
        assert allocations(lambda: rig.prefix.set_budget(12 * 56)) == []
        assert max(allocations(lambda: rig.prefix.close(onward, ()))) <= 24  # a conv tail
    rig.check()
    rig.check_released()


@pytest.mark.parametrize("look_ahead", [0, 1])
def test_scenario_20_a_token_range_is_stored_once(look_ahead):
    """02 scenario 20: by bytes, after ten turns and a switch that copies all rows out."""
    rig = CheckedRig("kv", look_ahead)
    said = []
    for turn in range(10):
        said += range(100 * turn + 1, 100 * turn + 8)
        rig.run(said, reply := list(range(100 * turn + 50, 100 * turn + 59)))
        assert rig.prefix.snapshot_bytes == 0
        said += reply
    live = sum(cache.nbytes() for cache in rig.caches)
    rig.run(range(5000, 5200))  # all rows are overwritten
    assert rig.prefix.snapshot_bytes == live


@each(CASES)
def test_scenario_23_eviction_that_frees_nothing_stops_at_once(layout, look_ahead):
    """02 scenario 23: EVI-9. Stored rows of a path that is live again: joining them frees nothing.

    Whatever the budget, a step never raises the counter.
    """
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 210))
    rig.run(range(400, 420))
    rig.run([*PROMPT, *range(200, 210), 5, 6])  # owned below, lazy above
    counter = rig.prefix.snapshot_bytes
    for budget in range(counter, -1, -16):
        rig.prefix.set_budget(budget)
        rig.check()
        assert rig.prefix.snapshot_bytes <= counter
        counter = rig.prefix.snapshot_bytes
    assert rig.found([*PROMPT, *range(200, 210), 5, 6]) == 58  # the frontier's path is there
    before = rig.ends
    rig.prefix.set_budget(0)
    assert rig.ends == before


def test_scenario_23_lazy_rows_are_no_candidates():
    """02 scenario 23: EVI-8, EVI-9. With nothing but lazy rows there is nothing to evict."""
    rig = CheckedRig("kv", 1, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    rig.run([*PROMPT, 200, 201, 5])
    ends = rig.ends
    rig.prefix.set_budget(0)
    assert rig.ends == ends


def test_a_conversation_left_after_every_turn_does_not_fall_to_pieces():
    """EVI-4: joined ranges may stay pieces, as long as there are few to restore."""
    rig = CheckedRig("kv", captures=NEVER)
    talk, most = list(range(10)), 0
    for turn in range(30):
        talk += [100 + turn, 200 + turn]
        rig.run(talk, [50])
        rig.run(range(300, 400))
        (node,) = [node for node in rig.nodes if node.edge[0] == 0]
        most = max(most, *(len(snapshot.pieces) for snapshot in node.snapshots))
    assert 5 < most <= 10
    assert rig.found(talk) == len(talk)
