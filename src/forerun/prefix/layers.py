"""The caches of all layers side by side: they rest at one offset between requests (STR-4)."""

from collections.abc import Iterator, Sequence

from forerun.contract.cache import LayerCache, Snapshot
from forerun.prefix.trie import Node

LayerSnapshots = list[Snapshot | None]  # one entry a layer


class Layers:
    """Layers without state take no part in anything (01 CTR-2)."""

    def __init__(self, caches: Sequence[LayerCache | None]) -> None:
        self._caches = tuple(cache for cache in caches if cache is not None)
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._caches)

    @property
    def offset(self) -> int:
        """Tokens that every layer holds."""
        return min((cache.offset for cache in self._caches), default=0)

    @property
    def nbytes(self) -> int:
        """Live state written so far."""
        return sum(cache.nbytes() for cache in self._caches)

    def rewind_or_free(self, target: int) -> None:
        """Each layer back to `target` from live state, or else empty (SWI-2)."""
        for cache in self._caches:
            if not cache.restore(None, target):
                cache.free()

    def page_in(self, path: Sequence[Node], most: int) -> None:
        """Restore what the nodes of `path` hold, up to `most` tokens, until a layer refuses."""
        for node in path:
            target = min(node.end, most)
            for cache, snapshot in zip(self._caches, node.snapshots, strict=True):
                if snapshot is None or cache.offset >= target:
                    continue
                if not cache.restore(snapshot, target):
                    return

    def align(self, path: Sequence[Node], most: int) -> None:
        """Bring all layers to the highest offset that all of them reach, `most` at the most.

        That is `most` itself, or the end of a node of `path` whose snapshots take there what cannot
        go back to it by itself. To hold nothing, as before the path's root, is always possible.
        """
        targets = [most, *(node.end for node in reversed(path) if node.end < most)]
        for target in targets:
            if all(self._reach(layer, target, path) for layer in range(len(self))):
                return

    def rewind(self, target: int) -> bool:
        """Each layer back to `target` from live state; False where one cannot go there."""
        return all(cache.restore(None, target) for cache in self._caches)

    def free(self) -> None:
        """Empty every layer; what was scheduled is gone, what is stored has been copied out."""
        self._scheduled = False
        for cache in self._caches:
            cache.free()

    def prepare(self, offsets: Sequence[int]) -> None:
        """Schedule captures on every layer; nothing at all if there are none (SCH-5)."""
        if offsets:
            self._scheduled = True
            for cache in self._caches:
                cache.prepare_snapshots(offsets)

    def take(self) -> list[LayerSnapshots]:
        """What was captured at each offset; empty if nothing was scheduled."""
        if not self._scheduled:
            return []
        self._scheduled = False
        taken = [cache.take_snapshots() for cache in self._caches]
        return [list(row) for row in zip(*taken, strict=True)]

    def missing(self, node: Node) -> Iterator[tuple[int, Snapshot | None]]:
        """What the layers that `node` lacks hold of it now, with their numbers."""
        for layer, (cache, held) in enumerate(zip(self._caches, node.snapshots, strict=True)):
            if held is None:
                yield layer, cache.snapshot(node.start)

    def split(self, layer: int, snapshot: Snapshot | None, at: int) -> LayerSnapshots:
        return list(self._caches[layer].split(snapshot, at))

    def reissue(self, layer: int, snapshot: Snapshot) -> Snapshot:
        return self._caches[layer].reissue(snapshot)

    def merge(self, parents: LayerSnapshots, children: LayerSnapshots) -> LayerSnapshots:
        return [
            cache.merge(parent, child)
            for cache, parent, child in zip(self._caches, parents, children, strict=True)
        ]

    def merge_frees(self, parents: LayerSnapshots, children: LayerSnapshots) -> int:
        return sum(
            cache.merge_frees(parent, child)
            for cache, parent, child in zip(self._caches, parents, children, strict=True)
        )

    def _reach(self, layer: int, target: int, path: Sequence[Node]) -> bool:
        cache = self._caches[layer]
        if cache.restore(None, target):
            return True
        if target == 0:
            cache.free()
            return True
        held = (node.snapshots[layer] for node in path if node.end == target)
        return any(cache.restore(snapshot, target) for snapshot in held if snapshot is not None)


def close_all(snapshots: Sequence[Snapshot | None]) -> None:
    for snapshot in snapshots:
        if snapshot is not None:
            snapshot.close()
