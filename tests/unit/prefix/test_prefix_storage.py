"""What the nodes of a trie hold when they are cut, joined and removed: 02 ADV-2, CMP, 01 ACC."""

import pytest

from fixtures.layer_kinds import PairLayer, RecurrentLayer, RowLayer
from forerun.prefix import trie
from forerun.prefix.layers import Layers
from forerun.prefix.storage import Storage

PROMPT = list(range(100, 113))


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


def test_a_snapshot_that_was_taken_from_its_node_reports_no_copy_out_to_it():
    """ACC-2: it may be on its way to another node, which counts it then."""
    store, layers, upper, _ = storage()
    taken = store._release(upper)
    for layer in layers:
        layer.cache.free()
    assert upper.owned_bytes == 0
    assert store.owned_bytes == sum(node.owned_bytes for node in store.nodes())
    for layer, snapshot in enumerate(taken):
        store._hold(upper, layer, snapshot)
    assert upper.owned_bytes == sum(snapshot.size() for snapshot in taken) > 0
