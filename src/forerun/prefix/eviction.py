"""Which stored state goes first when the budget is exceeded: a policy over plain numbers (EVI)."""

import heapq
from collections.abc import Callable, Collection, Iterable
from itertools import count

from forerun.prefix.trie import Node

Order = tuple[float, int, int]


class EvictionQueue:
    """The nodes of a trie, first to go first: longest unused, then deepest, then largest (EVI-3).

    Not the root, not what is protected, such as the frontier, which the live caches stand on, and
    no branch point. The rest of the active path may go: else one long conversation would grow
    without bound (EVI-2).
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._numbers = count()
        self._waiting = [(_order(node), next(self._numbers), node) for node in nodes]
        heapq.heapify(self._waiting)

    def next(self, protected: Collection[Node], join_frees: Callable[[Node], int]) -> Node | None:
        """The node to evict next; None where no step would free anything (EVI-9).

        join_frees  bytes that joining a node with its one child would free
        """
        while self._waiting:
            order, _, node = heapq.heappop(self._waiting)
            if order != _order(node) or not _stored(node) or node in protected:
                continue
            if len(node.children) > 1:
                continue
            if (join_frees(node) if node.children else node.owned_bytes + node.lazy_bytes) > 0:
                return node
        return None

    def changed(self, node: Node | None) -> None:
        """Judge a node anew: it, or what is below it, is no longer what it was."""
        if node is not None:
            heapq.heappush(self._waiting, (_order(node), next(self._numbers), node))


def in_the_way(
    nodes: Iterable[Node], protected: Collection[Node], path: Collection[Node]
) -> Node | None:
    """The first leaf to go of those that hold nothing and keep an ancestor from being evicted.

    path  what the live caches follow: rows there need no copies
    """
    leaves = (node for node in nodes if not node.children and node not in protected)
    keeping = (leaf for leaf in leaves if _keeps_bytes(leaf, protected, path))
    return min(keeping, key=_order, default=None)


def _keeps_bytes(node: Node, protected: Collection[Node], path: Collection[Node]) -> bool:
    above = node.parent
    while above is not None:
        if above not in protected and (
            above.owned_bytes or (above.lazy_bytes and above not in path)
        ):
            return True
        above = above.parent
    return False


def _order(node: Node) -> Order:
    return node.last_used, -node.end, -node.owned_bytes


def _stored(node: Node) -> bool:
    """Whether it is in the trie, and not its root."""
    return node.parent is not None and node.parent.children.get(node.edge[0]) is node
