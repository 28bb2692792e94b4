"""The trie against the plainest model, a set of sequences, and eviction against a sorted list.

Rules: 02 STR-1, 02 STR-3, MAT-1, MAT-2, ADV-1, ADV-2, CMP-2, CMP-5, EVI-2, EVI-3, EVI-9.
"""

from hypothesis import given
from hypothesis import strategies as st

from fixtures.layer_kinds import Rig
from fixtures.prefix_invariants import below, keys_to
from forerun.prefix import trie
from forerun.prefix.captures import CaptureRule
from forerun.prefix.eviction import EvictionQueue
from forerun.prefix.trie import Node

SEQUENCE = st.lists(st.integers(0, 2), max_size=8).map(tuple)  # few tokens: prefixes collide
STORED = st.lists(SEQUENCE, max_size=12)
NEVER = CaptureRule(interval=1000, before_end=1000)


def new_root() -> Node:
    return Node((), 0, None, 0.0, [None])


def insert(root: Node, keys: tuple[int, ...]) -> None:
    found = trie.match(root, keys)
    last = found.path[-1]
    if found.matched < last.end:
        last = trie.cut(last, found.matched - last.start)
    if found.matched < len(keys):
        trie.grow(last, keys[found.matched :])


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=False)
    shorter = min(len(one), len(other))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), shorter)


def assert_compressed(root: Node) -> None:
    for node in below(root):
        assert bool(node.edge) == (node is not root)
        for first, child in node.children.items():
            assert child.edge[0] == first
            assert (child.parent, child.start) == (node, node.end)


@given(stored=STORED, query=SEQUENCE)
def test_a_match_is_the_longest_beginning_shared_with_anything_stored(stored, query):
    """MAT-1, MAT-2: and its path spells it, the last node perhaps in part."""
    root = new_root()
    for keys in stored:
        insert(root, keys)
    found = trie.match(root, query)
    assert found.matched == max((common(keys, query) for keys in stored), default=0)
    *whole, last = found.path
    assert found.path[0] is root
    assert all(node.end <= found.matched for node in whole)
    assert last.start < found.matched <= last.end or last is root
    assert common(keys_to(last), query) == found.matched
    assert_compressed(root)


@given(stored=STORED, data=st.data())
def test_what_is_dropped_or_joined_leaves_every_other_sequence_as_it_was(stored, data):
    """CMP-2, CMP-5: a join changes no sequence; dropping a leaf forgets what only it spelled."""
    root = new_root()
    for keys in stored:
        insert(root, keys)
    joinable = [n for n in below(root) if n is not root and len(n.children) == 1]
    if joinable:
        node = data.draw(st.sampled_from(joinable))
        (child,) = node.children.values()
        spelled, below_it = keys_to(child), list(child.children.values())
        assert trie.join(node) is child
        assert keys_to(node) == spelled
        assert list(node.children.values()) == below_it
    leaves = [n for n in below(root) if n is not root and not n.children]
    if leaves:
        leaf = data.draw(st.sampled_from(leaves))
        kept = leaf.start
        trie.drop(leaf)
        assert trie.match(root, keys_to(leaf)).matched == kept
    assert_compressed(root)


@given(stored=STORED, at=st.integers(1, 7), data=st.data())
def test_a_cut_and_a_join_undo_each_other(stored, at, data):
    """ADV-2, CMP-6: keys, ends, flags and times."""
    root = new_root()
    for keys in stored:
        insert(root, keys)
    long = [n for n in below(root) if len(n.edge) > at]
    if not long:
        return
    node = data.draw(st.sampled_from(long))
    node.user, node.last_used = data.draw(st.booleans()), data.draw(st.sampled_from([0.0, 5.0]))
    before = (keys_to(node), node.end, list(node.children.values()), node.user, node.last_used)
    upper = trie.cut(node, at)
    assert (upper.start + at, upper.only_child, upper.user) == (upper.end, node, False)
    assert upper.last_used == node.last_used
    assert_compressed(root)
    trie.join(upper)
    children = list(upper.children.values())
    assert (keys_to(upper), upper.end, children, upper.user, upper.last_used) == before
    assert_compressed(root)


@given(stored=STORED, data=st.data())
def test_eviction_takes_the_longest_unused_then_the_deepest_then_the_largest(stored, data):
    """EVI-2, EVI-3, EVI-9: of the nodes that may go, the first whose going frees a byte."""
    root = new_root()
    for keys in stored:
        insert(root, keys)
    nodes, frees = list(below(root)), {}
    for node in nodes:
        node.last_used = float(data.draw(st.integers(0, 2)))
        node.owned_bytes = data.draw(st.integers(0, 3))
        frees[id(node)] = data.draw(st.integers(-1, 2)) if node.children else node.owned_bytes
    frontier = data.draw(st.sampled_from(nodes))
    may_go = [
        n
        for n in nodes
        if n is not root and n is not frontier and len(n.children) < 2 and frees[id(n)] > 0
    ]
    chosen = EvictionQueue(nodes).next([frontier], lambda node: frees[id(node)])
    assert (chosen is None) == (not may_go)
    if chosen is not None:
        assert chosen in may_go
        assert order(chosen) == min(order(node) for node in may_go)


def order(node: Node) -> tuple[float, int, int]:
    return node.last_used, -node.end, -node.owned_bytes


@given(stored=st.lists(SEQUENCE.filter(len), max_size=8), query=SEQUENCE.filter(len))
def test_a_session_finds_what_any_earlier_one_recorded(stored, query):
    """MAT-1 through whole requests without replies: all tokens but the last are recorded."""
    rig = Rig("kv", 0, captures=NEVER)
    for keys in stored:
        rig.run(keys)
    expected = max((common(keys[:-1], query) for keys in stored), default=0)
    assert rig.run(query).matched == expected
