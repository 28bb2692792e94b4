"""What the nodes of the trie hold, and every byte of it counted (spec 02 ADV, CMP; 01 ACC)."""

from collections.abc import Sequence
from functools import partial

from forerun.contract.cache import Snapshot
from forerun.prefix import trie
from forerun.prefix.layers import Layers, LayerSnapshots, close_all
from forerun.prefix.trie import Node


class Storage:
    """The trie together with its snapshots.

    Laws
    1. `owned_bytes` is the sum of the sizes of all snapshots stored, a node's that of its own: a
       copy-out reports itself to whoever holds the snapshot by then (ACC-2). `lazy_bytes` is
       what all of them together would own besides.
    2. What covers a range of tokens covers exactly its node's edge; what is a state at one offset
       is that at its node's end (STR-5).
    """

    def __init__(self, layers: Layers, now: float) -> None:
        self._layers = layers
        self.owned_bytes = self.lazy_bytes = 0
        self.root = self._new_root(now)

    def attach(self, node: Node, captures: LayerSnapshots) -> None:
        """Store captures that end with `node`, where it lacks them (ATT-5). Takes them over."""
        waiting = list(enumerate(captures))
        try:
            while waiting:
                layer, capture = waiting[0]
                if capture is not None and node.snapshots[layer] is None:
                    before, rest = self._layers.split(layer, capture, node.start)
                    close_all([before])
                    self._hold(node, layer, rest)
                else:
                    close_all([capture])
                del waiting[0]
        finally:
            close_all([capture for _, capture in waiting])

    def page_out(self, node: Node) -> None:
        """Store what the layers hold of `node`, where it lacks that, now that they rest there."""
        for layer, snapshot in self._layers.missing(node):
            self._hold(node, layer, snapshot)

    def cut(self, node: Node, at: int) -> Node:
        """Split a node and what it holds after `at` keys of its edge; the upper half (ADV-2).

        What cannot be split, for lack of memory, goes with all that follows it.
        """
        waiting = list(enumerate(self._release(node)))
        upper = trie.cut(node, at)
        try:
            while waiting:
                layer, snapshot = waiting[0]
                before, after = self._layers.split(layer, snapshot, upper.end)
                self._hold(upper, layer, before)
                self._hold(node, layer, after)
                del waiting[0]
        except BaseException:
            close_all([snapshot for _, snapshot in waiting])
            self._remove_all(upper)
            raise
        return upper

    def join(self, node: Node) -> Node:
        """Merge a node's one child, which is returned, into the node (CMP-2)."""
        parents, children = self._release(node), self._release(node.only_child)
        child = trie.join(node)
        for layer, snapshot in enumerate(self._layers.merge(parents, children)):
            self._hold(node, layer, snapshot)
        return child

    def join_frees(self, node: Node) -> int:
        return self._layers.merge_frees(node.snapshots, node.only_child.snapshots)

    def reissue(self, node: Node) -> None:
        """Let go of what a node of the active path owns and the live caches hold as well."""
        node.joins = 0
        if node.owned_bytes:
            for layer, snapshot in enumerate(self._release(node)):
                kept = None if snapshot is None else self._layers.reissue(layer, snapshot)
                self._hold(node, layer, kept)

    def remove(self, leaf: Node) -> None:
        trie.drop(leaf)
        close_all(self._release(leaf))

    def _remove_all(self, node: Node) -> None:
        """A node and everything below it."""
        for child in list(node.children.values()):
            self._remove_all(child)
        self.remove(node)

    def clear(self, now: float) -> None:
        """Close everything, without a copy of anything."""
        for _, node in trie.walk(self.root):
            close_all(self._release(node))
        assert self.owned_bytes == 0, self.owned_bytes
        self.root = self._new_root(now)

    def nodes(self) -> Sequence[Node]:
        return [node for _, node in trie.walk(self.root)]

    def _new_root(self, now: float) -> Node:
        return Node((), 0, None, now, [None] * len(self._layers))

    def _hold(self, node: Node, layer: int, snapshot: Snapshot | None) -> None:
        node.snapshots[layer] = snapshot
        if snapshot is not None:
            self._count(node, snapshot.size(), snapshot.lazy_bytes())
            snapshot.set_materialize_hook(partial(self._copied_out, node))

    def _release(self, node: Node) -> LayerSnapshots:
        """A node's snapshots, no longer counted as its own."""
        held, node.snapshots = node.snapshots, [None] * len(self._layers)
        for snapshot in held:
            if snapshot is not None:
                snapshot.set_materialize_hook(None)
        self._count(node, -node.owned_bytes, -node.lazy_bytes)
        return held

    def _copied_out(self, node: Node, copied: int) -> None:
        self._count(node, copied, -copied)

    def _count(self, node: Node, owned: int, lazy: int) -> None:
        node.owned_bytes += owned
        node.lazy_bytes += lazy
        self.owned_bytes += owned
        self.lazy_bytes += lazy
