"""Which stored state goes first when the budget is exceeded: a policy over plain numbers (EVI)."""

import heapq
from collections.abc import Callable, Iterable
from itertools import count

from forerun.prefix.trie import Node

Order = tuple[float, int, int]


class EvictionQueue:
    """The nodes of a trie, first to go first: longest unused, then deepest, then largest (EVI-3).

    Not the root, not the frontier, which the live caches stand on, and no branch point. The rest
    of the active path may go: else one long conversation would grow without bound (EVI-2).
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        self._numbers = count()
        self._waiting = [(_order(node), next(self._numbers), node) for node in nodes]
        heapq.heapify(self._waiting)

    def next(self, frontier: Node, join_frees: Callable[[Node], int]) -> Node | None:
        """The node to evict next; None where no step would free anything (EVI-9).

        join_frees  bytes that joining a node with its one child would free
        """
        while self._waiting:
            order, _, node = heapq.heappop(self._waiting)
            if order != _order(node) or not _stored(node) or node is frontier:
                continue
            if len(node.children) > 1:
                continue
            if (join_frees(node) if node.children else node.owned_bytes) > 0:
                return node
        return None

    def changed(self, node: Node | None) -> None:
        """Judge a node anew: it, or what is below it, is no longer what it was."""
        if node is not None:
            heapq.heappush(self._waiting, (_order(node), next(self._numbers), node))


def in_the_way(nodes: Iterable[Node], frontier: Node) -> Node | None:
    """The first leaf to go of those that own nothing and keep an ancestor from being evicted.

    Such leaves are left behind by a conversation whose rows were overwritten but for the last.
    """
    leaves = [
        n for n in nodes if not n.children and n is not frontier and _keeps_bytes(n, frontier)
    ]
    return min(leaves, key=_order, default=None)


def _keeps_bytes(node: Node, frontier: Node) -> bool:
    above = node.parent
    while above is not None:
        if above.owned_bytes and above is not frontier:
            return True
        above = above.parent
    return False


def _order(node: Node) -> Order:
    return node.last_used, -node.end, -node.owned_bytes


def _stored(node: Node) -> bool:
    """Whether it is in the trie, and not its root."""
    return node.parent is not None and node.parent.children.get(node.edge[0]) is node
