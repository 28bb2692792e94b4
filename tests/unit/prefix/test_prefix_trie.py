"""The trie's structure: 02 STR, MAT, and splitting and joining by themselves (ADV-2, CMP-2)."""

import pytest

from fixtures.checked_rig import CASES, NEVER, CheckedRig, each
from fixtures.layer_kinds import LAYOUTS
from forerun.prefix import trie
from forerun.prefix.trie import Node

PROMPT = list(range(100, 147))


def root():
    return Node((), 0, None, 0.0, [None])


def small():
    """abcdef over root, ab shared: root -> (1, 2) -> (3, 4) and (5, 6, 7)."""
    top = root()
    shared = trie.grow(top, (1, 2))
    return top, shared, trie.grow(shared, (3, 4)), trie.grow(shared, (5, 6, 7))


@each(CASES)
def test_a_node_says_where_it_stands_and_what_it_holds(layout, look_ahead):
    """02 STR-1: targets first, then the draft; the root is empty and ends at 0."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, [200, 201])
    top = rig.prefix.root
    assert (top.edge, top.start, top.end, top.parent) == ((), 0, 0, None)
    layers = len(LAYOUTS[layout]) + look_ahead
    for node in rig.nodes:
        assert node.start == node.end - len(node.edge) == node.parent.end
        assert len(node.snapshots) == layers
    assert [node.user for node in rig.nodes] == [*[True] * (len(rig.nodes) - 1), False]
    draft = rig.nodes[-1].snapshots[-1] if look_ahead else None
    assert draft is None or (draft.start, draft.end) == (rig.nodes[-1].start, 48)


@each(CASES)
def test_the_active_path_ends_where_the_caches_stand(layout, look_ahead):
    """02 STR-2: `[root]` at first; in a request, after the switch and after each attach."""
    rig = CheckedRig(layout, look_ahead)
    assert rig.prefix.path == [rig.prefix.root]
    rig.run(PROMPT, [200, 201])
    with rig.prefix.begin([*PROMPT[:21], 1, 2, 3]):
        assert rig.prefix.path[0] is rig.prefix.root
        assert rig.prefix.path[-1].end == rig.offset
    rig.check()


@each(CASES)
def test_siblings_never_share_a_first_key(layout, look_ahead):
    """02 STR-3: whatever leaves an edge wherever; `check` looks at each node after each request."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT)
    for shared in (0, 1, 2, 20, 21, 20, 46):
        rig.run([*PROMPT[:shared], 1, 2, 3])
    firsts = [(id(node.parent), node.edge[0]) for node in rig.nodes]
    assert len(firsts) == len(set(firsts))
    with pytest.raises(AssertionError, match="siblings"):
        trie.grow(rig.prefix.root, (rig.nodes[0].edge[0],))


@each(CASES)
def test_layers_rest_at_one_offset_however_a_request_ends(layout, look_ahead):
    """02 STR-4: `offset` asks every layer."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, chunk=5, cancel_after=3)
    assert rig.offset == 15
    rig.run([*PROMPT[:12], 1, 2], [200], chunk=5)
    assert rig.offset == 14
    rig.run(PROMPT, chunk=5, cancel_after=0)
    assert rig.offset <= 15


@each([case for case in CASES if case[0] != "kv"])
def test_a_whole_state_may_be_missing_and_is_made_up_for(layout, look_ahead):
    """02 STR-5: rows cover exactly each edge (`check`); a request that ends at a node without a
    state starts from an earlier checkpoint, and leaves one where its match ended.
    """
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT, range(200, 210))
    first = rig.run([*PROMPT[:30], 1, 2, 3])
    assert (first.matched, first.cached) == (30 - look_ahead, 0)
    second = rig.run([*PROMPT[:30], 4, 5, 6])
    assert second.matched == second.cached == 30 - look_ahead


@each(CASES)
def test_what_one_request_leaves_serves_all_that_follow(layout, look_ahead):
    """02 STR-6: trie and caches are made once; a request brings nothing and replaces nothing."""
    rig = CheckedRig(layout, look_ahead)
    top = rig.prefix.root
    for _ in range(2):
        for start in (100, 300, 500):
            rig.run(range(start, start + 20), [1, 2])
    assert rig.prefix.root is top
    assert [rig.found(range(start, start + 20)) for start in (100, 300, 500)] == [
        20 - look_ahead
    ] * 3


@each(CASES)
def test_a_node_never_grows_in_place(layout, look_ahead):
    """02 STR-8: what follows a user node is a child with captures of its own."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT[:20], [200])
    before = {id(node): (node.edge, node.end) for node in rig.nodes if node.user}
    assert before
    rig.run([*PROMPT[:20], 200, *range(300, 330)])
    after = {id(node): (node.edge, node.end) for node in rig.nodes}
    assert before.items() <= after.items()


@pytest.mark.parametrize("look_ahead", [0, 1])
def test_a_draft_with_caches_of_its_own_is_stored_beside_the_target(look_ahead):
    """02 STR-9: its rows are in every node, behind the target's."""
    rig = CheckedRig("kv", look_ahead)
    rig.run(PROMPT, [200])
    for node in rig.nodes:
        assert len(node.snapshots) == 2 + look_ahead
        assert all((held.start, held.end) == (node.start, node.end) for held in node.snapshots)


def test_a_walk_stops_in_the_edge_that_differs():
    """MAT-1: the path holds the node that was matched in part."""
    top, shared, left, right = small()
    for keys, path, matched in [
        ((1, 2, 3, 4), (top, shared, left), 4),
        ((1, 2, 3, 9), (top, shared, left), 3),
        ((1, 2, 5, 6, 7, 8), (top, shared, right), 5),
        ((1, 2, 9), (top, shared), 2),
        ((1, 9), (top, shared), 1),
        ((1,), (top, shared), 1),
        ((9, 1), (top,), 0),
    ]:
        found = trie.match(top, keys)
        assert (found.path, found.matched) == (path, matched), keys


def test_nothing_matches_the_root():
    """MAT-2."""
    top, *_ = small()
    found = trie.match(top, ())
    assert (found.path, found.matched) == ((top,), 0)


def test_a_cut_puts_a_node_over_the_first_keys():
    """ADV-2: the lower part stays the object it was, with children, flag and end."""
    top, _, _, right = small()
    below = trie.grow(right, (8,))
    right.user, right.last_used = True, 5.0
    parent = right.parent
    upper = trie.cut(right, 1)
    assert (upper.edge, upper.start, upper.end) == ((5,), 2, 3)
    assert (right.edge, right.start, right.end) == ((6, 7), 3, 5)
    assert right.children == {8: below}
    assert upper.children == {6: right}
    assert parent.children[5] is upper
    assert (upper.parent, right.parent, below.parent) == (parent, upper, right)
    assert (upper.user, right.user) == (False, True)
    assert upper.last_used == right.last_used == 5.0
    assert trie.match(top, (1, 2, 5, 6, 7, 8)).matched == 6


@pytest.mark.parametrize("at", [-1, 0, 3, 4])
def test_a_cut_is_inside_the_edge(at):
    """ADV-2."""
    _, _, _, right = small()
    with pytest.raises(AssertionError):
        trie.cut(right, at)


def test_a_join_lengthens_a_node_by_its_child():
    """CMP-2: grandchildren move up, the child's flag counts, the later use counts."""
    _, shared, left, _ = small()
    low = trie.grow(left, (8,))
    leaves = [trie.grow(low, (9,)), trie.grow(low, (10,))]
    left.user, left.last_used, low.last_used = True, 7.0, 3.0
    assert trie.join(left) is low
    assert (left.edge, left.start, left.end) == ((3, 4, 8), 2, 5)
    assert list(left.children.values()) == leaves
    assert all(leaf.parent is left for leaf in leaves)
    assert left.parent is shared
    assert (left.user, left.last_used) == (False, 7.0)


def test_a_join_needs_exactly_one_child():
    """CMP-2."""
    _, shared, left, _ = small()
    for node in (shared, left):
        with pytest.raises((AssertionError, ValueError)):
            trie.join(node)


def test_only_leaves_are_dropped_and_never_the_root():
    """CMP-5."""
    top, shared, left, right = small()
    with pytest.raises(AssertionError):
        trie.drop(shared)
    trie.drop(left)
    assert shared.children == {5: right}
    with pytest.raises(AssertionError):
        trie.drop(root())
    assert trie.match(top, (1, 2, 3)).matched == 2


def test_a_new_node_was_used_when_its_parent_was():
    """ADV-1."""
    top = root()
    top.last_used = 3.0
    child = trie.grow(top, (1, 2))
    assert (child.last_used, child.user, child.snapshots) == (3.0, False, [None])
