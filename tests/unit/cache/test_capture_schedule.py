"""Scheduled captures, for both kinds of attention cache."""

import pytest
import torch

from forerun.cache.kv import KVCache
from forerun.cache.rotating import RotatingCache
from forerun.cache.rows import RowShape

SHAPE = RowShape(1, 1, 1, torch.float32, torch.device("cpu"))
KINDS = {"kv": lambda: KVCache(SHAPE, 64), "rotating": lambda: RotatingCache(SHAPE, 4, 3)}


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def cache(request):
    return request.param()


def write(cache, *tokens):
    rows = torch.tensor(tokens, dtype=torch.float32).view(1, 1, -1, 1)
    cache.update(rows, -rows)


def spans(taken):
    return [None if s is None else (s.start, s.end) for s in taken]


def test_a_capture_starts_where_the_one_before_it_ended():
    """R4, PND-1, PND-4, PND-5, PND-6: not where the write began: ranges match trie edges."""
    cache = KINDS["kv"]()
    write(cache, 1, 2)
    cache.prepare_snapshots([2, 3, 5])
    write(cache, 3, 4)
    write(cache, 5, 6)
    assert spans(cache.take_snapshots()) == [None, (2, 3), (3, 5)]


def test_one_write_fires_every_capture_that_it_reaches(cache):
    """PND-3, KV-6: both ends included; what it does not reach stays None."""
    write(cache, 1)
    cache.prepare_snapshots([3, 5, 9, 10])
    write(cache, 2, 3, 4, 5, 6, 7, 8, 9)
    taken = cache.take_snapshots()
    assert spans(taken) == [(1, 3), (3, 5), (5, 9), None]


def test_an_offset_that_is_here_already(cache):
    """PND-8, PND-6: a rewind is enough for one kind; the other has the state, as it is now."""
    write(cache, 1, 2, 3, 4, 5)
    cache.prepare_snapshots([5])
    write(cache, *range(20))
    (taken,) = cache.take_snapshots()
    if isinstance(cache, KVCache):
        assert taken is None
    else:
        assert cache.restore(taken, 5)
        assert cache.view().keys.flatten().tolist() == [2, 3, 4, 5]


def test_nothing_is_captured_of_an_empty_sequence(cache):
    """ROT-11, PND-6."""
    cache.prepare_snapshots([0])
    write(cache, 1, 2)
    assert cache.take_snapshots() == [None]


def test_an_offset_that_a_restore_jumped_over_is_not_captured(cache):
    """PND-3: only a write reaches an offset."""
    write(cache, *range(6))
    ahead = cache.snapshot(0)
    assert cache.restore(None, 4)
    cache.prepare_snapshots([5, 7])
    assert cache.restore(ahead, 6)
    write(cache, 1)
    assert spans(cache.take_snapshots()) == [None, (4, 7)]


def test_a_capture_due_here_fires_as_a_write_begins(cache):
    """WRT-1, PND-8: before the write can overwrite what it needs."""
    write(cache, *range(6))
    ahead = cache.snapshot(0)
    assert cache.restore(None, 4)
    cache.prepare_snapshots([6])
    assert cache.restore(ahead, 6)
    cache.begin_write(20)
    cache.end_write(0)
    assert spans(cache.take_snapshots()) == [(4, 6)]


@pytest.mark.parametrize("offsets", [[1], [3, 3], [4, 3]], ids=["behind", "twice", "descending"])
def test_a_schedule_is_checked(cache, offsets):
    """PND-2."""
    write(cache, 1, 2)
    with pytest.raises(AssertionError):
        cache.prepare_snapshots(offsets)


def test_every_schedule_is_drained_before_the_next(cache):
    """R8, PND-2: an empty one too; and there is nothing to take twice."""
    cache.prepare_snapshots([])
    with pytest.raises(AssertionError, match="not been taken"):
        cache.prepare_snapshots([1])
    assert cache.take_snapshots() == []
    with pytest.raises(AssertionError, match="nothing was prepared"):
        cache.take_snapshots()


def test_the_list_of_offsets_is_copied(cache):
    """PND-2."""
    offsets = [1]
    cache.prepare_snapshots(offsets)
    offsets.append(2)
    write(cache, 1, 2)
    assert len(cache.take_snapshots()) == 1


def test_free_drops_the_schedule_and_what_it_captured(cache):
    """PND-7: nothing of it is copied out, and the next schedule starts afresh."""
    write(cache, 1, 2)
    cache.prepare_snapshots([3])
    write(cache, 3)
    cache.free()
    cache.prepare_snapshots([2])
    write(cache, 1, 2)
    (taken,) = cache.take_snapshots()
    assert (taken.end, taken.size()) == (2, 0)
