"""Taking a round's refused tokens out of the target's caches again (RND-4, RND-9, RND-10)."""

from itertools import chain

from forerun.contract.cache import AttentionCache, LayerCache, Snapshot
from forerun.contract.model import Caches


class Rollback:
    """One round at a time over a sequence's caches: `begin`, a forward, then `commit`.

    Caches of keys and values rewind live over any round, since a window's slack is no smaller
    (01 ROT-1). The others are captured after each token that the round may have to end with.
    """

    def __init__(self, caches: Caches) -> None:
        present = [cache for cache in caches if cache is not None]
        self._live = [cache for cache in present if isinstance(cache, AttentionCache)]
        self._captured = [cache for cache in present if not isinstance(cache, AttentionCache)]
        self._round: tuple[int, int] | None = None  # offset before it, drafts
        self._scheduled: list[LayerCache] = []

    def begin(self, before: int, drafts: int) -> None:
        """Ahead of the forward of the current token, at offset `before`, and `drafts` more."""
        assert self._round is None, f"the round {self._round} has not ended"
        self._round = (before, drafts)
        if not drafts:
            return
        offsets = range(before + 1, before + drafts + 1)
        for cache in self._captured:
            cache.prepare_snapshots(offsets)
            self._scheduled.append(cache)

    def commit(self, keep: int) -> None:
        """Leave the current token and the first `keep` drafts in the caches."""
        assert self._round is not None, "no round has begun"
        before, drafts = self._round
        assert 0 <= keep <= drafts, (keep, drafts)
        self._end(before + 1 + keep, keep)

    def abandon(self) -> None:
        """Undo a round that failed: at most its current token stays. Harmless after its end."""
        if self._round is not None:
            self._end(self._round[0] + 1, 0)

    def _end(self, target: int, keep: int) -> None:
        """Rewind every cache that has come further than `target`; of captures, `keep` leads there.

        All schedules are drained first, and all captures closed whatever happens.
        """
        scheduled, self._scheduled, self._round = self._scheduled, [], None
        captures = [cache.take_snapshots() for cache in scheduled]
        try:
            for rows in self._live:
                if rows.offset > target:
                    _rewind(rows, None, target)
            for cache, captured in zip(scheduled, captures, strict=True):
                if cache.offset > target:
                    _rewind(cache, captured[keep], target)
        finally:
            for snapshot in chain.from_iterable(captures):
                if snapshot is not None:
                    snapshot.close()


def _rewind(cache: LayerCache, snapshot: Snapshot | None, target: int) -> None:
    offset, kind = cache.offset, type(cache).__name__
    restored = cache.restore(snapshot, target)
    assert restored, f"a {kind} at {offset} does not return to {target}"
