"""What the end of a request records, and how the trie's nodes come and go: 02 CLO, ADV, CMP."""

import pytest
import torch

from fixtures.checked_rig import CASES, NEVER, REWINDING, STUBBORN, CheckedRig, each
from fixtures.layer_kinds import PairLayer, RecurrentLayer, RowLayer
from forerun.base.errors import CancelledError
from forerun.prefix import trie
from forerun.prefix.layers import Layers
from forerun.prefix.prefix_cache import PrefixCache
from forerun.prefix.storage import Storage

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


def storage():
    """Rows, a window, pairs and a state, at 12 tokens, in a node of [0, 8) and one of [8, 12)."""
    layers = [RowLayer("kv"), RowLayer("sliding"), PairLayer(), RecurrentLayer()]
    store = Storage(Layers([layer.cache for layer in layers]), 0.0)
    upper = lower = None
    for start, end in ((0, 8), (8, 12)):
        for layer in layers:
            pairs = isinstance(layer, PairLayer)
            layer.feed(PROMPT[layer.cache.offset : end + pairs])
        lower = trie.grow(upper or store.root, tuple(PROMPT[start:end]))
        upper = upper or lower
        store.page_out(lower)
    return store, layers, upper, lower


def spans(node):
    return [None if held is None else (held.start, held.end) for held in node.snapshots]


@pytest.mark.parametrize("owned", [False, True])
def test_a_cut_gives_each_half_its_rows_and_the_state_to_the_lower(owned):
    """ADV-2, 01 KV-13: at absolute offsets, and every byte stays counted."""
    store, layers, upper, lower = storage()
    if owned:
        for layer in layers:
            layer.cache.free()
    head = store.cut(lower, 1)
    assert spans(head) == [(8, 9), None, (8, 9), None]
    assert spans(lower) == [(9, 12), (8, 12), (9, 12), (8, 12)]
    assert head.parent is upper
    assert store.owned_bytes == sum(node.owned_bytes for node in (upper, head, lower))
    again = store.join(head)
    assert again is lower
    store.clear(0.0)
    assert store.owned_bytes == 0


@pytest.mark.parametrize("owned", [False, True])
def test_cut_and_join_are_an_identity(owned):
    """CMP-6: for keys, rows, states and accounting."""
    store, layers, _, lower = storage()
    if owned:
        for layer in layers:
            layer.cache.free()
    edge, held, counted = lower.edge, spans(lower), store.owned_bytes
    state, tokens = lower.snapshots[3].state.delta.clone(), PROMPT[8:12]
    whole = store.cut(lower, 2)
    store.join(whole)
    assert (whole.edge, whole.end, spans(whole)) == (edge, 12, held)
    assert store.owned_bytes == counted == sum(node.owned_bytes for node in store.nodes())
    assert whole.snapshots[3].state.delta == state
    fresh = RowLayer("kv")
    fresh.feed(PROMPT[:8])
    assert fresh.cache.restore(whole.snapshots[0], 12)
    assert fresh.holds([*PROMPT[:8], *tokens])


def test_a_join_keeps_the_later_state():
    """CMP-2: rows of both, the child's window and state; what the parent had is closed."""
    store, layers, upper, lower = storage()
    for layer in layers:
        layer.cache.free()
    states = lower.snapshots[1], lower.snapshots[3]
    frees = upper.snapshots[1].size() + upper.snapshots[3].size()
    counted = store.owned_bytes
    assert store.join_frees(upper) == frees
    store.join(upper)
    assert spans(upper) == [(0, 12), (8, 12), (0, 12), (8, 12)]
    assert (upper.snapshots[1], upper.snapshots[3]) == states
    assert store.owned_bytes == counted - frees
    with pytest.raises((AssertionError, ValueError)):
        store.join(upper)


def test_a_removed_leaf_is_no_longer_counted():
    """CMP-5: leaves only, and never the root."""
    store, layers, upper, lower = storage()
    for layer in layers:
        layer.cache.free()
    counted, freed = store.owned_bytes, lower.owned_bytes
    with pytest.raises(AssertionError):
        store.remove(upper)
    store.remove(lower)
    assert store.owned_bytes == counted - freed == upper.owned_bytes
    store.remove(upper)
    with pytest.raises(AssertionError):
        store.remove(store.root)


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
def test_an_error_leaves_what_was_stored_and_nothing_of_its_own(layout, look_ahead):
    """contract/model law 2: after a broken forward nobody knows what the layers hold."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, [200, 201])
    with pytest.raises(ZeroDivisionError), rig.prefix.begin([*PROMPT, 200, 201, *OTHER]):
        rig.forward([*PROMPT, 200, 201, 1, 2])
        raise ZeroDivisionError
    rig.check()
    assert rig.found([*PROMPT, 200, 201, *OTHER]) == 48
    rig.run([*PROMPT, 200, 201, *OTHER])


OUT_OF_MEMORY = pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])


@OUT_OF_MEMORY
def test_an_error_for_want_of_memory_gives_back_what_is_stored(error):
    """All but the path that is live."""
    rig = CheckedRig("hybrid", 1)
    rig.run(PROMPT, [200, 201])
    with pytest.raises(error), rig.prefix.begin(OTHER):
        rig.forward(OTHER[:10])
        raise error
    assert rig.prefix.snapshot_bytes == 0
    rig.check()
    rig.run(PROMPT)


def failing(error):
    def fail(*_):
        raise error

    return fail


def failing_once(error, then):
    errors = [error]

    def fail(*arguments):
        if errors:
            raise errors.pop()
        return then(*arguments)

    return fail


@OUT_OF_MEMORY
def test_want_of_memory_for_a_stored_conversation_costs_that_and_not_the_request(
    monkeypatch, error
):
    """A switch copies out what it leaves; where it cannot, all that is stored is forgotten."""
    rig = CheckedRig("hybrid", 1)
    rig.run(PROMPT, [200, 201])
    with monkeypatch.context() as patch:
        patch.setattr(rig.targets[2].cache, "restore", failing(error("no room")))
        session = rig.prefix.begin(OTHER)
    with session:
        assert session.cached == rig.offset == rig.prefix.snapshot_bytes == 0
        rig.forward(OTHER[:19])
        rig.settle(OTHER)
    rig.check()
    assert rig.run(PROMPT).matched == 0


@OUT_OF_MEMORY
def test_a_cut_for_which_there_is_no_memory_forgets_and_leaks_nothing(monkeypatch, error):
    """SWI-8: halves of owned rows are copies."""
    rig = CheckedRig("kv", 1, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    rig.run(range(300, 360))
    with monkeypatch.context() as patch:
        patch.setattr(rig.targets[1].cache, "split", failing(error("no room")))
        session = rig.prefix.begin([*PROMPT[:20], 1, 2])
    with session:
        assert session.cached == rig.offset == rig.prefix.snapshot_bytes == 0
    rig.check()
    rig.run(PROMPT)


@each(STUBBORN)
def test_captures_that_cannot_be_stored_are_closed(monkeypatch, layout, look_ahead):
    """ATT-2, CTR-3: all of them, the one in hand included."""
    rig = CheckedRig(layout, look_ahead)
    with (
        monkeypatch.context() as patch,
        pytest.raises(MemoryError),
        rig.prefix.begin(PROMPT) as session,
    ):
        rig.forward(PROMPT[:46])
        rig.settle(PROMPT)
        patch.setattr(rig.targets[1].cache, "split", failing(MemoryError("no room")))
        session.attach()
    rig.check_drained()
    rig.run(PROMPT, [200])  # after which `check` finds whatever is still open


def test_a_switch_that_breaks_off_is_heard_of_and_leaves_layers_level(monkeypatch):
    """STR-4: the path ends where the layers stand, whatever went wrong on the way."""
    rig = CheckedRig("hybrid", 1)
    rig.run(PROMPT, [200, 201])
    rig.run(OTHER)
    with monkeypatch.context() as patch:
        cache = rig.targets[2].cache
        broken = failing_once(ZeroDivisionError("broken"), cache.restore)
        patch.setattr(cache, "restore", broken)
        with pytest.raises(ZeroDivisionError):
            rig.prefix.begin(PROMPT)
    rig.check()
    rig.run([*PROMPT, 200, 201, 5])


def test_a_lost_device_does_not_hide_the_error_that_told_of_it(monkeypatch):
    """Nothing can be restored on it: all is forgotten."""
    rig = CheckedRig("hybrid", 1)
    rig.run(PROMPT, [200, 201])
    with (
        monkeypatch.context() as patch,
        pytest.raises(ZeroDivisionError),
        rig.prefix.begin([*PROMPT, 200, 201, *OTHER]),
    ):
        patch.setattr(rig.targets[2].cache, "restore", failing(RuntimeError("lost")))
        raise ZeroDivisionError
    rig.check()
    assert len(rig.prefix.nodes()) == 1
    rig.run(PROMPT)


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
