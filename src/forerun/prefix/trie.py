"""A compressed trie over key sequences (spec 02 STR, MAT): structure only, no tensors.

Laws
1. Only the root has an empty edge. `end` counts the keys from the root to a node's end.
2. No two children of a node start with the same key.
3. A node's edge never grows in place: new keys become a child, and only `join` lengthens an edge,
   by that of the one child (STR-8).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from forerun.contract.cache import Snapshot

Keys = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Node:
    """A stretch of a stored sequence, with what the layers hold of it."""

    edge: Keys
    end: int
    parent: "Node | None"
    last_used: float
    snapshots: list[Snapshot | None]  # one entry a layer that has state; None: missing
    user: bool = False  # resists compaction, not eviction (CMP-3)
    owned_bytes: int = 0  # of the snapshots
    lazy_bytes: int = 0  # what they would own besides, were all that they name copied out
    joins: int = 0  # how often its edge grew by a child's: what it holds may lie in as many pieces
    children: dict[int, "Node"] = field(default_factory=dict)  # by their first key

    @property
    def start(self) -> int:
        return self.end - len(self.edge)

    @property
    def only_child(self) -> "Node":
        (child,) = self.children.values()
        return child


@dataclass(frozen=True, slots=True)
class Match:
    """The nodes that a sequence shares with what is stored, the last one perhaps in part."""

    path: tuple[Node, ...]
    matched: int  # keys


def match(root: Node, keys: Keys) -> Match:
    path, matched = [root], 0
    while matched < len(keys):
        child = path[-1].children.get(keys[matched])
        if child is None:
            break
        shared = common_length(child.edge, keys[matched : matched + len(child.edge)])
        path.append(child)
        matched += shared
        if shared < len(child.edge):
            break
    return Match(tuple(path), matched)


def grow(parent: Node, edge: Keys) -> Node:
    """A new child that holds nothing yet."""
    child = Node(
        edge=edge,
        end=parent.end + len(edge),
        parent=parent,
        last_used=parent.last_used,
        snapshots=[None] * len(parent.snapshots),
    )
    assert edge[0] not in parent.children, "siblings never share a first key"
    parent.children[edge[0]] = child
    return child


def cut(node: Node, at: int) -> Node:
    """Put a new node over the first `at` keys of `node`'s edge; `node` keeps the rest (ADV-2)."""
    assert node.parent is not None, "the root has no edge to cut"
    assert 0 < at < len(node.edge), (at, len(node.edge))
    upper = Node(
        edge=node.edge[:at],
        end=node.start + at,
        parent=node.parent,
        last_used=node.last_used,
        snapshots=[None] * len(node.snapshots),
        children={node.edge[at]: node},
    )
    node.parent.children[upper.edge[0]] = upper
    node.edge, node.parent = node.edge[at:], upper
    return upper


def join(node: Node) -> Node:
    """Lengthen `node` by its one child, which leaves the trie and is returned (CMP-2)."""
    child = node.only_child
    node.edge += child.edge
    node.end, node.user = child.end, child.user
    node.joins += child.joins + 1
    node.last_used = max(node.last_used, child.last_used)
    node.children = child.children
    for grandchild in node.children.values():
        grandchild.parent = node
    return child


def drop(leaf: Node) -> None:
    assert leaf.parent is not None, "the root stays"
    assert not leaf.children, "only leaves are dropped"
    del leaf.parent.children[leaf.edge[0]]


def walk(root: Node) -> Iterator[tuple[int, Node]]:
    """Every node with its depth, parents before children."""
    waiting = [(0, root)]
    while waiting:
        depth, node = waiting.pop()
        yield depth, node
        waiting += [(depth + 1, child) for child in reversed(node.children.values())]


def common_length(one: Sequence[int], other: Sequence[int]) -> int:
    if one == other:  # in C, and the usual case
        return len(one)
    pairs = zip(one, other, strict=False)
    shortest = min(len(one), len(other))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), shortest)
