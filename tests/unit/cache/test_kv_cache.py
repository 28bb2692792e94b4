"""The full-attention cache: memory, copy-outs, and rules that one example shows best."""

import gc
import os
import subprocess
import sys
import weakref

import pytest
import torch

from forerun.cache.kv import KVCache
from forerun.cache.rotating import RotatingCache
from forerun.cache.rows import RowShape
from forerun.contract.cache import AttentionCache

CPU = torch.device("cpu")
TINY = RowShape(1, 1, 1, torch.float32, CPU)
MEGABYTE = 1 << 20


def rows_of(*tokens, shape=TINY):
    values = torch.tensor(tokens, dtype=shape.dtype).view(1, 1, -1, 1)
    return values.expand(1, shape.heads, -1, shape.key_dim)


def write(cache, *tokens, shape=TINY):
    rows = rows_of(*tokens, shape=shape)
    return cache.update(rows, -rows[..., : shape.value_dim])


def held(cache):
    return cache.view().keys[0, 0, :, 0].tolist()


def test_both_kinds_offer_the_whole_contract():
    """CTR-1, CTR-7: targets and drafts alike hold nothing else."""
    for cache in (KVCache(TINY, 64), RotatingCache(TINY, 4)):
        assert isinstance(cache, AttentionCache)


RESIDENT = """
import torch
from forerun.cache.kv import KVCache
from forerun.cache.rows import RowShape
from forerun.engine.memory import anonymous_bytes

MEGABYTE = 1024 * 1024
shape = RowShape(4, 64, 64, torch.bfloat16, torch.device("cpu"))
many = torch.ones(1, 4, 64 * MEGABYTE // shape.row_bytes, 64, dtype=torch.bfloat16)
few = many[:, :, :16].clone()
before = anonymous_bytes()
cache = KVCache(shape, 360 * MEGABYTE // shape.row_bytes)
cache.update(few, few)
assert anonymous_bytes() - before < 4 * MEGABYTE, "reserved memory is resident"
assert cache.nbytes() == 16 * shape.row_bytes
cache.update(many, many)
assert anonymous_bytes() - before > 60 * MEGABYTE, "the measurement sees nothing"
cache.free()
assert anonymous_bytes() - before < 4 * MEGABYTE, "freed memory stays"
assert cache.nbytes() == 0
"""


def test_a_reserved_context_is_not_resident_before_it_is_written():
    """R13, KV-1, and KV-9: what was resident goes back to the system with `free`.

    In a process of its own, since this one's heap grows and shrinks by what other tests did.
    """
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_reserved_buffer_never_moves():
    """KV-1, CTR-8: not by writes, rewinds or restores; `free` is what `generation` counts."""
    cache = KVCache(TINY, 64)
    address = cache.begin_write(4).keys.data_ptr()
    cache.end_write(4)
    generation, snapshot = cache.generation, cache.snapshot(1)
    for _ in range(5):
        cache.restore(None, 2)
        write(cache, *range(12))
        assert cache.restore(snapshot, 4)
        assert cache.view().keys.data_ptr() == address
    assert cache.generation == generation
    cache.free()
    assert cache.generation > generation


def test_a_buffer_that_cannot_be_reserved_grows_by_capacity_classes():
    """KV-1: powers of two from 4096, at most the context, copying live rows and saying so."""
    cache = KVCache(TINY, 10_000, reserve=False)
    seen = []
    for start in range(0, 10_000, 500):
        generation = cache.generation
        written = cache.begin_write(500)
        written.store(
            *[torch.arange(start, start + 500, dtype=torch.float32).view(1, 1, -1, 1)] * 2
        )
        cache.end_write(500)
        capacity = written.keys.shape[2]
        assert (cache.generation > generation) == (capacity not in seen)
        seen.append(capacity)
    assert sorted(set(seen)) == [4096, 8192, 10_000]
    assert held(cache) == list(range(10_000))


def test_a_refusal_of_the_system_falls_back_to_growth(caplog):
    """KV-1: and is logged once for all layers, with the reason."""
    rows = torch.ones(1, 8, 1, 1024)
    with caplog.at_level("INFO", logger="forerun"):
        for _ in range(3):
            cache = KVCache(RowShape(8, 1024, 1024, torch.float32, CPU), 1 << 40)  # 2**56 bytes
            cache.update(rows, rows)
            cache.free()
            assert cache.begin_write(1).keys.shape[2] == 4096
    assert [r.message.startswith("cannot reserve") for r in caplog.records] == [True]


def test_growth_keeps_what_lazy_snapshots_name():
    """KV-5, CTR-8: live rows stay lazy, rows that a rewind left are copied out."""
    cache = KVCache(TINY, 64, reserve=False, smallest_class=4)
    write(cache, 1, 2, 3, 4)
    live, left = cache.snapshot(0), cache.snapshot(3)
    cache.restore(None, 3)
    short = cache.split(live, 3)[0]
    write(cache, 5, 6, 7, 8)
    assert (short.size(), left.size()) == (0, TINY.row_bytes)
    assert cache.restore(left, 4)
    assert held(cache) == [1, 2, 3, 4]


def test_rows_ahead_of_a_rewind_survive_refilling():
    """R1, KV-4: every append looks at every lazy snapshot, not only the first after the rewind."""
    cache = KVCache(TINY, 1024)
    write(cache, *range(600))
    pieces = [cache.snapshot(0)]
    for at in range(100, 600, 100):
        before, after = cache.split(pieces.pop(), at)
        pieces += [before, after]
    cache.restore(None, 100)
    for filler in range(4):
        write(cache, *[-1000.0 * (filler + 1)] * 100)
    assert [piece.size() > 0 for piece in pieces] == [False, True, True, True, True, False]
    for piece in pieces:
        assert cache.restore(piece, piece.end)
        assert held(cache)[piece.start :] == list(range(piece.start, piece.end))


@pytest.mark.parametrize("heads", [1, 3])
def test_a_copy_is_as_large_as_its_rows(heads):
    """R2, KV-8, ACC-3: also for one head, where `contiguous` would return the buffer's view."""
    shape = RowShape(heads, 8, 4, torch.bfloat16, CPU)
    cache = KVCache(shape, 256)
    write(cache, *range(10), shape=shape)
    snapshot = cache.snapshot(4)
    reported = []
    snapshot.set_materialize_hook(reported.append)
    assert snapshot.size() == 0
    cache.free()
    assert reported == [snapshot.size()] == [6 * heads * (8 + 4) * 2]
    before, after = cache.split(snapshot, 5)  # the same holds of a split
    assert (before.size(), after.size()) == (shape.row_bytes, 5 * shape.row_bytes)


def test_lazy_snapshots_survive_free():
    """R11, KV-9."""
    cache = KVCache(TINY, 64)
    write(cache, 1, 2, 3)
    snapshot = cache.snapshot(0)
    cache.free()
    assert cache.offset == 0
    assert cache.view().live == 0
    write(cache, 7, 8, 9, 10)
    assert cache.restore(snapshot, 3)
    assert held(cache) == [1, 2, 3]


def test_a_lazy_snapshot_of_this_cache_moves_the_offset_and_no_data():
    """KV-11: forward too."""
    cache = KVCache(TINY, 64)
    write(cache, 1, 2, 3, 4)
    snapshot = cache.snapshot(2)
    assert cache.restore(None, 2)
    assert cache.restore(snapshot, 4)
    assert held(cache) == [1, 2, 3, 4]
    assert snapshot.size() == 0


def test_a_gap_is_refused():
    """KV-11, CTR-5."""
    cache = KVCache(TINY, 64)
    write(cache, 1, 2, 3, 4)
    snapshot = cache.snapshot(3)
    assert cache.restore(None, 2)
    assert not cache.restore(snapshot, 4)
    assert held(cache) == [1, 2]


def test_a_foreign_snapshot_does_not_become_the_buffer():
    """CTR-6: what is written after restoring it does not reach it."""
    one, other = KVCache(TINY, 64), KVCache(TINY, 64)
    write(one, 1, 2, 3)
    snapshot = one.snapshot(0)
    for last in (7, 8):
        assert other.restore(snapshot, 2)
        write(other, last)
        assert held(other) == [1, 2, last]
    assert held(one) == [1, 2, 3]


def test_restoring_over_a_lazy_snapshot_saves_it_first():
    """KV-4, KV-11: the append inside a restore overwrites as any other does."""
    cache = KVCache(TINY, 64)
    write(cache, 1, 2)
    first = cache.snapshot(0)
    cache.free()  # `first` owns its rows now
    write(cache, 3, 4)
    second = cache.snapshot(0)
    assert cache.restore(first, 2)
    assert cache.restore(second, 2)
    assert held(cache) == [3, 4]


def test_neighbours_merge_lazily_where_both_are_lazy():
    """KV-12, EVI-4: and side by side where not, without a copy; with None there is nothing."""
    cache = KVCache(TINY, 64)
    write(cache, 1, 2, 3, 4)
    before, after = cache.split(cache.snapshot(0), 1)
    merged = cache.merge(before, after)
    assert (merged.start, merged.end, merged.size(), len(merged.pieces)) == (0, 4, 0, 1)
    before, after = cache.split(merged, 3)
    cache.restore(None, 3)
    write(cache, 9)  # copies `after` out
    merged = cache.merge(before, after)
    assert (merged.size(), len(merged.pieces)) == (TINY.row_bytes, 2)
    assert cache.restore(merged, 4)
    assert held(cache) == [1, 2, 3, 4]
    assert cache.merge(merged, None) is None
    with pytest.raises(AssertionError, match="closed twice"):
        merged.close()


def test_ranges_that_do_not_meet_are_never_merged():
    """KV-14."""
    cache = KVCache(TINY, 64)
    write(cache, 1, 2, 3, 4)
    first, second = cache.split(cache.snapshot(0), 2)
    with pytest.raises(AssertionError):
        cache.merge(second, first)


def test_a_closed_snapshot_is_of_no_use():
    """CTR-3: closing twice, restoring and merging are errors, lazy or owned."""
    cache = KVCache(TINY, 64)
    write(cache, 1, 2)
    lazy, owned = cache.snapshot(0), cache.snapshot(0)
    lazy.close()
    cache.free()
    owned.close()
    for snapshot in (lazy, owned):
        with pytest.raises(AssertionError, match="closed twice"):
            snapshot.close()
        with pytest.raises(AssertionError, match="after close"):
            cache.restore(snapshot, 2)


def test_a_view_is_the_first_rows_and_needs_no_mask():
    """KV-3, KV-15: column k holds position k, in the dtype that was written."""
    shape = RowShape(2, 4, 2, torch.bfloat16, CPU)
    cache = KVCache(shape, 64)
    write(cache, 1, 2, 3, shape=shape)
    view = cache.view()
    assert (view.live, view.oldest, view.positions, view.applier) == (3, 0, None, None)
    assert (view.keys.shape, view.values.shape) == ((1, 2, 3, 4), (1, 2, 3, 2))
    assert view.keys.dtype == torch.bfloat16


def test_a_write_says_where_rows_go_and_what_is_live():
    """WRT-1, WRT-7: pointers, first index, live length."""
    cache = KVCache(TINY, 64)
    write(cache, 1, 2)
    begun = cache.begin_write(3)
    assert (begun.first_index, begun.history.live, begun.index, begun.window) == (2, 5, None, None)
    assert begun.keys.shape[2] == 64
    cache.end_write(0)
    assert held(cache) == [1, 2]


def test_no_call_comes_between_the_two_halves_of_a_write():
    """WRT-3."""
    cache = KVCache(TINY, 64)
    with pytest.raises(AssertionError, match="no write has begun"):
        cache.end_write(1)
    cache.begin_write(2)
    for call in (
        lambda: cache.begin_write(1),
        cache.view,
        cache.free,
        lambda: cache.snapshot(0),
        lambda: cache.restore(None, 0),
    ):
        with pytest.raises(AssertionError, match="has not ended"):
            call()
    with pytest.raises(AssertionError):
        cache.end_write(3)  # more than was announced
    with pytest.raises(AssertionError):
        KVCache(TINY, 4).begin_write(5)  # more than the context


def test_a_lazy_snapshot_keeps_no_tensor_alive():
    """R16, KV-8."""
    cache = KVCache(TINY, 64, reserve=False, smallest_class=4)
    old = weakref.ref(cache.begin_write(4).keys)
    cache.end_write(4)
    snapshot = cache.snapshot(0)
    write(cache, 5)  # grows, and lets the first buffer go
    gc.collect()
    assert old() is None
    assert snapshot.size() == 0


def test_a_kept_history_is_not_read_again():
    """R14, WRT-5: after new memory is in place, what the old memory holds changes nothing."""
    cache = KVCache(TINY, 64)
    kept = write(cache, 1, 2, 3)
    snapshot = cache.snapshot(0)
    cache.free()
    kept.keys.fill_(float("nan"))
    assert cache.restore(snapshot, 3)
    assert held(cache) == [1, 2, 3]
