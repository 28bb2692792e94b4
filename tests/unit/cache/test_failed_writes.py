"""A write that cannot begin: whatever fails in it, the cache goes on as if nobody had asked."""

import pytest
import torch

from forerun.cache.kv import KVCache
from forerun.cache.rotating import RotatingCache
from forerun.cache.rows import Rows, RowShape

SHAPE = RowShape(1, 1, 1, torch.float32, torch.device("cpu"))


def write(cache, tokens):
    rows = torch.tensor(tokens, dtype=torch.float32).view(1, 1, -1, 1)
    cache.update(rows, -rows)


def held(cache):
    return cache.view().keys.flatten().tolist()


def fails(*_):
    raise torch.OutOfMemoryError("no memory for rows")


def grows():
    """A KV cache of 4 rows, all written."""
    cache = KVCache(SHAPE, 64, reserve=False, smallest_class=4)
    write(cache, [0, 1, 2, 3])
    return cache


def rotates():
    """A sliding window of 4, slack 3: the buffer of 10 rows is full."""
    cache = RotatingCache(SHAPE, 4, 3)
    write(cache, list(range(10)))
    return cache


# a cache, the rows to announce, and the method that fails: allocation, copy, copy-out
FAILURES = {
    "kv: no larger buffer": (grows, 5, RowShape, "empty"),
    "kv: no copy into it": (grows, 5, Rows, "copy_from"),
    "kv: no copy-out": (grows, 1, Rows, "compact"),
    "rotating: no compaction": (rotates, 1, Rows, "copy_from"),
    "rotating: no staging": (rotates, 9, RowShape, "empty"),
    "rotating: no copy to the staging": (rotates, 9, Rows, "copy_from"),
    "rotating: no copy-out": (rotates, 1, Rows, "compact"),
}


@pytest.fixture(params=FAILURES.values(), ids=list(FAILURES))
def broken(request, monkeypatch):
    """The cache after the failed write, what it held before, and a snapshot that was in the way."""
    make, tokens, owner, method = request.param
    cache = make()
    ahead, end = cache.snapshot(cache.offset - 1), cache.offset
    assert cache.restore(None, end - 1)
    before = held(cache)

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, fails)
        with pytest.raises(torch.OutOfMemoryError):
            cache.begin_write(tokens + 1)
    assert cache.offset == end - 1
    assert held(cache) == before
    return cache, before, ahead


def test_what_was_held_stays_and_can_be_rewound(broken):
    """WRT-2, REQ-3: a failed write is not an open one."""
    cache, before, _ = broken
    with pytest.raises(AssertionError, match="no write has begun"):
        cache.end_write(0)
    assert cache.restore(None, cache.offset - 1)
    assert held(cache)[-3:] == before[:-1][-3:]


def test_a_snapshot_in_the_way_restores_still(broken):
    """WRT-2, KV-5, ROT-4: a copy-out that failed has not lost the snapshot's rows to the next."""
    cache, before, ahead = broken
    write(cache, [100])
    assert held(cache)[-2:] == [before[-1], 100]
    assert cache.restore(ahead, ahead.end)
    assert held(cache)[-2:] == [before[-1], before[-1] + 1]
    ahead.close()


@pytest.mark.parametrize("tokens", [1, 2, 30])
def test_the_next_write_works(broken, tokens):
    """WRT-2, REQ-3."""
    cache, before, _ = broken
    new = list(range(100, 100 + tokens))
    write(cache, new)
    assert held(cache)[-4:] == [*before, *new][-4:]


def test_the_cache_can_be_freed(broken):
    """REQ-3: as the session does after a failed forward."""
    cache, before, ahead = broken
    cache.free()
    assert (cache.offset, held(cache)) == (0, [])
    write(cache, [7, 8])
    assert held(cache) == [7, 8]
    cache.free()
    if isinstance(cache, RotatingCache):
        assert cache.restore(ahead, ahead.end)
        assert held(cache)[-1] == before[-1] + 1


@pytest.mark.parametrize("tokens", [6, 12], ids=["moves rows", "replaces all"])
def test_a_chunk_that_cannot_be_taken_in_is_as_if_unwritten(tokens, monkeypatch):
    """WRT-2, ROT-7: staged rows whose commit would first have to copy a snapshot out."""
    cache = rotates()
    old, before = cache.snapshot(0), held(cache)
    begun = cache.begin_write(tokens)
    begun.store(*[torch.full((1, 1, tokens, 1), 100.0)] * 2)
    with monkeypatch.context() as patch:
        patch.setattr(Rows, "compact", fails)
        with pytest.raises(torch.OutOfMemoryError):
            cache.end_write(tokens)
    assert (cache.offset, held(cache)) == (10, before)
    write(cache, [10])
    assert cache.restore(old, 10)
    assert held(cache) == before


@pytest.mark.parametrize("kind", [KVCache, RotatingCache])
def test_the_first_write_of_all_may_fail(kind, monkeypatch):
    """WRT-2, KV-1: there is no buffer yet."""
    cache = KVCache(SHAPE, 64, reserve=False) if kind is KVCache else RotatingCache(SHAPE, 4, 3)
    with monkeypatch.context() as patch:
        patch.setattr(RowShape, "empty", fails)
        with pytest.raises(torch.OutOfMemoryError):
            cache.begin_write(2)
    cache.free()
    write(cache, [1, 2])
    assert held(cache) == [1, 2]
