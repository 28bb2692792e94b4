"""What the end of a request records, and how the trie's nodes come and go: 02 CLO, ADV, CMP."""

import pytest

from fixtures.checked_rig import CASES, NEVER, REWINDING, STUBBORN, CheckedRig, each
from fixtures.layer_kinds import RowLayer
from forerun.base.errors import CancelledError
from forerun.prefix.prefix_cache import PrefixCache

PROMPT = list(range(100, 147))
OTHER = list(range(300, 320))


@each(CASES)
def test_a_close_attaches_what_the_prefill_left(layout, look_ahead):
    """CLO-1: a session that ends by itself before anybody attached."""
    rig = CheckedRig(layout, look_ahead)
    with rig.prefix.begin(PROMPT):
        rig.forward(PROMPT[:46])
        rig.settle(PROMPT)
    assert rig.ends == [*(offset - look_ahead for offset in (8, 16, 24, 32, 40, 43)), 46]
    rig.check_drained()
    rig.check()


@each(CASES)
def test_caches_that_hold_nothing_record_nothing(layout, look_ahead):
    """CLO-2."""
    rig = CheckedRig(layout, look_ahead)
    rig.run([1])
    rig.run(PROMPT, cancel_after=0)
    assert rig.nodes == []
    assert rig.found(PROMPT) == 0


@each(CASES)
def test_caches_ahead_of_the_record_are_a_broken_invariant(layout, look_ahead):
    """CLO-3: nothing of what came after the last good state is believed."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, [200, 201])
    with (
        pytest.raises(AssertionError, match=f"only {20 - look_ahead} keys"),
        rig.prefix.begin(OTHER),
    ):
        rig.forward([*OTHER, 1, 2])
        rig.settle([*OTHER, 1, 2, 3])
    rig.check()
    assert rig.run(OTHER).cached == 0
    back = rig.run([*PROMPT, 200, 201, 5])
    assert back.matched == 48


@each(CASES)
def test_a_close_records_what_came_after_the_frontier(layout, look_ahead):
    """CLO-4: and with nothing new nothing is recorded."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    assert rig.ends == [48]
    with rig.prefix.begin([*PROMPT, 200, 201, 5]) as session:
        assert session.cached == 48
    assert rig.ends == [48]
    rig.run([*PROMPT, 200, 201, 5, 6])
    assert rig.ends == [50]


@each(STUBBORN)
def test_a_close_gives_every_layer_what_it_lacks(layout, look_ahead):
    """CLO-5: the node where a reply ended had rows from a split, and gets its state now."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT[:12], range(200, 212))
    rig.run(PROMPT[:12], range(200, 206))
    head = rig.prefix.path[-1]
    assert (head.end, len(head.children)) == (17, 1)
    assert all(held is not None and held.end == 17 for held in head.snapshots)


@each(CASES)
def test_the_frontier_was_used_when_the_request_ended(layout, look_ahead):
    """CLO-6: what a close records is nobody's request for a checkpoint."""
    now = [0.0]
    rig = CheckedRig(layout, look_ahead, captures=NEVER, clock=lambda: now[0])
    with rig.prefix.begin(PROMPT):
        rig.forward(PROMPT[:46])
        rig.settle(PROMPT)
        now[0] = 7.0
    (node,) = rig.nodes
    assert (node.last_used, node.user) == (7.0, False)


@each(STUBBORN)
def test_the_state_of_a_close_gives_way_to_that_of_the_next(layout, look_ahead):
    """CLO-7: a chat of one path keeps one whole state, not one a turn."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    said, counted = [], set()
    for turn in range(6):
        said += range(100 * turn + 1, 100 * turn + 8)
        rig.run(said, reply := list(range(100 * turn + 50, 100 * turn + 59)))
        said += reply
        (node,) = rig.nodes
        counted.add(sum(held.size() for held in node.snapshots if held is not None))
    assert len(counted) == 1


@each(CASES)
def test_a_run_along_stored_keys_goes_through_their_nodes(layout, look_ahead):
    """ADV-1: cut where it leaves an edge, appended to the path, and the rest a child of its own."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT[:20], range(200, 210))
    rig.run(PROMPT[:20], [*range(200, 205), *range(400, 404)])
    shared = 25 - look_ahead
    assert rig.ends == [19, shared, 29, 28]
    assert [node.end for node in rig.prefix.path] == [0, 19, shared, 28]
    _, head, *leaves = rig.nodes
    assert list(head.children.values()) == leaves


@each(CASES)
def test_only_the_frontier_is_compacted_and_only_into_a_lone_parent(layout, look_ahead):
    """CMP-1: not into the root, a user node or a branch point."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT[:12], [200])
    user = 8 - look_ahead
    assert rig.ends == [user, 12]
    rig.run([*PROMPT[:12], 200, 5])
    assert rig.ends == [user, 10 - look_ahead, 13] or rig.ends == [user, 13]
    rig.run([*PROMPT[:12], 201, 5])
    assert user in rig.ends
    parents = [node.parent for node in rig.nodes if node.parent is not rig.prefix.root]
    for parent in parents:
        assert parent.user or len(parent.children) > 1 or parent not in rig.prefix.path[:-1]


@each(CASES)
def test_a_user_node_may_be_evicted(layout, look_ahead):
    """CMP-3."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT)
    rig.run(range(300, 360))
    rig.prefix.set_budget(0)
    assert rig.found(PROMPT) == 0
    rig.check()


@each(CASES)
def test_merges_join_covered_ranges(layout, look_ahead):
    """CMP-4: page-out comes before compaction; `check` sees a gap or an overlap at once."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    for end in (12, 13, 14, 40, 41):
        rig.run(PROMPT[:end])
        (node,) = rig.nodes
        assert (node.start, node.end) == (0, end - 1)
    rig.run(range(300, 360))
    assert rig.run(PROMPT).cached == 40


@each(REWINDING)
def test_layers_at_different_offsets_are_levelled_at_the_end(layout, look_ahead):
    """CLO-2, CLO-4: only what every layer holds is recorded."""
    rig = CheckedRig(layout, look_ahead)
    with pytest.raises(CancelledError), rig.prefix.begin(PROMPT):
        rig.forward(PROMPT[:10])
        rig.targets[0].feed(PROMPT[10:13])
        rig.settle(PROMPT[:11])
        raise CancelledError("gone")
    assert rig.offset == 10
    rig.check()


@each(STUBBORN)
def test_layers_that_a_broken_forward_left_uneven_go_back_to_what_is_known(layout, look_ahead):
    """CLO-2: a state cannot be levelled; nothing of it is recorded."""
    rig = CheckedRig(layout, look_ahead)
    stubborn = next(t for t in rig.targets if not isinstance(t, RowLayer) or t._reach < 10)
    with pytest.raises(CancelledError), rig.prefix.begin(PROMPT):
        rig.forward(PROMPT[:20])
        rig.settle(PROMPT[:21])
        stubborn.feed(PROMPT[20:30])
        raise CancelledError("gone")
    rig.check()
    found = rig.run(PROMPT)
    assert found.cached <= 20


@each(CASES)
def test_clearing_in_the_middle_of_a_request_leaves_it_nothing_to_record(layout, look_ahead):
    """ATT-2, CLO-2: its captures are gone with the state that they would have gone on from."""
    rig = CheckedRig(layout, look_ahead)
    with rig.prefix.begin(PROMPT) as session:
        rig.forward(PROMPT[:20])
        rig.settle(PROMPT[:21])
        rig.prefix.clear()
        assert session.pending == ()
    assert rig.nodes == []
    rig.check()
    assert rig.run(PROMPT).cached == 0


def test_a_model_without_caches_evaluates_everything():
    for prefix in (PrefixCache([]), PrefixCache([None, None])):
        for _ in range(2):
            with prefix.begin([1, 2, 3]) as session:
                assert (session.cached, session.pending) == (0, ())
                session.attach()
        assert len(prefix.nodes()) == 1


def test_stateless_layers_take_no_part():
    """CTR-2: their None never counts, neither for what can rewind nor for the lowest offset."""
    rig = CheckedRig([None, "kv", None])
    rig.run(PROMPT, [200, 201])
    assert rig.run([*PROMPT[:20], 1, 2]).cached == 20
    other = PrefixCache([rig.targets[0].cache, None])
    with other.begin([*PROMPT[:20], 1, 2]) as session:
        assert session.cached == 0  # a new prefix cache knows nothing of what a layer holds
        assert rig.offset == 0
