"""The sliding-window cache: what stays lazy, what moves, what is allocated, worked values."""

from itertools import pairwise

import pytest
import torch

from fixtures.allocations import allocations
from forerun.cache.applier import WindowApplier
from forerun.cache.rotating import RotatingCache
from forerun.cache.rows import RowShape
from forerun.contract.mask import CAUSAL, NONE, Rect, relax, visible
from forerun.contract.model import CacheOptions

TINY = RowShape(1, 1, 1, torch.float32, torch.device("cpu"))


def made(window=4, slack=4):
    return RotatingCache(TINY, window, slack)


def write(cache, *tokens):
    rows = torch.tensor(tokens, dtype=torch.float32).view(1, 1, -1, 1)
    return cache.update(rows, -rows)


def held(cache):
    return cache.view().keys.flatten().tolist()


def singly(cache, tokens):
    for token in tokens:
        write(cache, token)


def test_the_buffer_holds_window_and_slack_after_it_was_compacted():
    """ROT-1: the window and twice the slack, allocated once and written in place."""
    cache = made(window=4, slack=3)
    begun = cache.begin_write(1)
    cache.end_write(1)
    address, generation = begun.keys.data_ptr(), cache.generation
    assert begun.keys.shape[2] == 4 + 2 * 3
    singly(cache, range(40))
    write(cache, *range(30))
    assert cache.begin_write(1).keys.data_ptr() == address
    cache.end_write(0)
    assert cache.generation == generation
    assert cache.restore(None, cache.offset - 3)


def test_what_models_ask_for_rewinds_a_whole_round():
    """ROT-1: the floor of the slack is the widest verification forward; tests go below it."""
    assert CacheOptions(context=32, slack=16).slack == 16
    with pytest.raises(AssertionError, match="slack of 15"):
        CacheOptions(context=32, slack=15)


def test_a_decode_step_allocates_nothing():
    """ROT-8, REW-3: neither do a compaction, a verification or the rewind of what it refused."""
    cache = made(window=8, slack=4)
    rows = torch.ones(1, 1, 3, 1)
    write(cache, 1, 2, 3)
    refused = []

    def decode():
        for _ in range(40):  # before, at and after the wrap
            cache.update(rows[:, :, :1], rows[:, :, :1])
            cache.update(rows, rows)
            refused.append(cache.restore(None, cache.offset - 2))

    assert allocations(decode) == []
    assert all(refused)
    assert cache.offset == 3 + 40 * 2


def test_a_buffer_compacts_at_most_once_in_slack_tokens():
    """ROT-8: a token's row goes behind the last one's in every other step."""
    cache = made(window=4, slack=5)
    indices = []
    for _ in range(60):
        indices.append(cache.begin_write(1).first_index)
        cache.end_write(1)
    moves = [i for i in range(1, 60) if indices[i] != indices[i - 1] + 1]
    assert moves
    assert all(later - earlier >= 5 for earlier, later in pairwise(moves))


def test_one_row_a_time_or_all_at_once_leave_the_same():
    """ROT-2, ROT-7: also where the chunk is longer than the slack."""
    for count in range(1, 30):
        one, other = made(slack=3), made(slack=3)
        write(one, 100, 101)
        write(other, 100, 101)
        singly(one, range(count))
        write(other, *range(count))
        assert (one.offset, held(one)) == (other.offset, held(other))
        for back in range(4):  # the last window + slack rows are there
            assert other.restore(None, 2 + count - back)
            assert one.restore(None, 2 + count - back)
            assert held(one) == held(other)


def test_a_chunk_sees_the_old_rows_that_it_pushes_out():
    """ROT-7: window - 1 old rows and all new ones, in order."""
    cache = made(window=4, slack=2)
    write(cache, *range(10))
    history = write(cache, *range(10, 22))
    assert history.keys.flatten().tolist() == list(range(7, 22))
    assert (history.oldest, history.live) == (7, 15)
    assert held(cache) == [18, 19, 20, 21]


def test_an_abandoned_chunk_leaves_the_cache_as_it_was():
    """WRT-2, ROT-14: and as much of it is left to rewind."""
    cache = made(window=4, slack=3)
    write(cache, *range(9))
    for tokens in (3, 30):
        cache.begin_write(tokens)
        cache.end_write(0)
        assert held(cache) == [5, 6, 7, 8]
    assert cache.restore(None, 6)
    assert held(cache) == [2, 3, 4, 5]


def test_a_view_shows_the_window_and_nothing_older():
    """ROT-10."""
    cache = made(window=4)
    assert cache.view().live == 0
    write(cache, 0, 1)
    assert (held(cache), cache.view().oldest) == ([0, 1], 0)
    singly(cache, range(2, 30))
    view = cache.view()
    assert (held(cache), view.oldest, view.live) == ([26, 27, 28, 29], 26, 4)
    assert not view.applier.needed(1)


def test_a_snapshot_ignores_where_it_starts():
    """ROT-13: except that it must span a token."""
    cache = made()
    assert cache.snapshot(0) is None
    write(cache, *range(9))
    assert cache.snapshot(9) is None
    snapshot = cache.snapshot(8)
    assert (snapshot.start, snapshot.end, snapshot.size()) == (8, 9, 0)
    cache.free()
    assert snapshot.size() == 4 * TINY.row_bytes  # ROT-21: its window's rows
    assert cache.restore(snapshot, 9)
    assert held(cache) == [5, 6, 7, 8]


def test_what_is_untouched_stays_lazy():
    """R10, ROT-4: a write copies out what it overwrites and a compaction what it drops."""
    cache = made(window=2, slack=4)
    write(cache, 0, 1, 2, 3)
    early, late = cache.snapshot(0), None
    write(cache, 4, 5, 6, 7)
    late = cache.snapshot(0)
    write(cache, 8, 9)
    assert (early.size(), late.size()) == (0, 0)
    write(cache, 10)  # the buffer of 10 is full: rows below 4 go
    assert (early.size(), late.size()) == (2 * TINY.row_bytes, 0)
    assert cache.restore(None, 7)
    write(cache, 70)
    assert late.size() == 2 * TINY.row_bytes
    for snapshot, state in ((late, [6, 7]), (early, [2, 3])):
        assert cache.restore(snapshot, snapshot.end)
        assert held(cache) == state


def test_an_own_snapshot_whose_rows_stand_is_restored_for_nothing():
    """R12, ROT-17: it and its siblings stay lazy, hear nothing and can be restored again."""
    cache = made(window=4, slack=6)
    write(cache, *range(6))
    first = cache.snapshot(0)
    write(cache, 6, 7, 8)
    second = cache.snapshot(0)
    heard = []
    for snapshot in (first, second):
        snapshot.set_materialize_hook(heard.append)

    def back_and_forth():
        for snapshot, state in ((first, [2, 3, 4, 5]), (second, [5, 6, 7, 8])) * 2:
            assert cache.restore(snapshot, snapshot.end)
            assert held(cache) == state

    cache.view()
    assert allocations(back_and_forth) == []
    assert (first.size(), second.size(), heard) == (0, 0, [])


def test_rows_of_two_sequences_never_mix():
    """ROT-6, ROT-14: a lazy state ahead of a rewind is restored, and only its rows are held."""
    cache = made(window=2, slack=8)
    write(cache, *range(9))
    ahead = cache.snapshot(0)
    assert cache.restore(None, 3)
    write(cache, 30, 31)
    assert cache.restore(ahead, 9)
    assert held(cache) == [7, 8]
    assert not cache.restore(None, 8)  # position 6 belongs to it, 5 and 4 do not
    assert not cache.restore(None, 4)
    assert cache.nbytes() == 2 * TINY.row_bytes
    write(cache, 9)
    assert cache.restore(None, 9)


def test_compacting_does_not_bring_back_rows_below_the_floor():
    """ROT-6, ROT-14: though the buffer has room for them."""
    cache = made(window=2, slack=8)
    write(cache, *range(9))
    ahead = cache.snapshot(0)
    assert cache.restore(None, 3)
    write(cache, 30, 31, 32, 33)
    assert cache.restore(ahead, 9)
    write(cache, *range(9, 16))
    write(cache, 16, 17, 18)  # more than the buffer of 18 has room for
    assert not cache.restore(None, 8)  # position 6 holds 33
    assert held(cache) == [17, 18]


def test_compacting_saves_what_is_ahead_of_a_rewind():
    """ROT-4: rows beyond the offset are not moved along."""
    cache = made(window=4, slack=3)
    write(cache, *range(10))
    ahead = cache.snapshot(0)
    assert cache.restore(None, 8)
    write(cache, 80, 90, 100)  # more than the buffer of 10 has room for
    assert held(cache) == [7, 80, 90, 100]
    assert cache.restore(ahead, 10)
    assert held(cache) == [6, 7, 8, 9]


def test_a_chunk_that_ends_early_saves_what_it_overwrites():
    """ROT-4, WRT-2: a long chunk was announced, and a few rows of it were written."""
    cache = made(window=4, slack=3)
    write(cache, *range(6))
    ahead = cache.snapshot(0)
    assert cache.restore(None, 3)
    begun = cache.begin_write(9)
    rows = torch.arange(90.0, 99.0).view(1, 1, -1, 1)
    begun.store(rows, -rows)
    cache.end_write(2)
    assert held(cache) == [1, 2, 90, 91]
    assert cache.restore(ahead, 6)
    assert held(cache) == [2, 3, 4, 5]


def test_another_snapshot_is_copied_in_where_it_belongs():
    """ROT-18, ROT-16: whatever the offset; lazy siblings whose rows stay are not copied out."""
    other = made(window=2, slack=4)
    write(other, *range(100, 107))
    foreign = other.snapshot(0)
    cache = made(window=2, slack=4)
    write(cache, 0, 1, 2)
    near, over = cache.snapshot(0), None
    write(cache, 3, 4, 5, 6)
    over = cache.snapshot(0)
    assert cache.restore(foreign, 7)
    assert held(cache) == [105, 106]
    assert (near.size(), over.size()) == (0, 2 * TINY.row_bytes)
    far = made(window=2, slack=4)
    write(far, *range(200, 240))
    assert cache.restore(far.snapshot(0), 40)  # too far ahead for the buffer: it starts anew
    assert held(cache) == [238, 239]
    assert near.size() == 2 * TINY.row_bytes
    for snapshot, state in ((near, [1, 2]), (over, [5, 6])):
        assert cache.restore(snapshot, snapshot.end)
        assert held(cache) == state


@pytest.mark.parametrize("target", [-1, 6, 8])
def test_a_state_is_restored_at_its_end_alone(target):
    """ROT-15, CTR-5: once the sequence is longer than the window."""
    cache = made(window=4)
    write(cache, *range(7))
    snapshot = cache.snapshot(0)
    assert not cache.restore(snapshot, target)
    assert held(cache) == [3, 4, 5, 6]


def test_a_state_that_holds_the_whole_sequence_is_restored_anywhere():
    """ROT-15."""
    cache = made(window=4)
    write(cache, 0, 1, 2, 3)
    snapshot = cache.snapshot(0)
    cache.free()
    assert cache.restore(snapshot, 2)
    assert held(cache) == [0, 1]


def test_captures_inside_a_chunk():
    """ROT-3, ROT-11: lazy while the buffer holds their rows, else owned from the chunk's."""
    cache = made(window=4, slack=3)
    write(cache, *range(9))
    offsets = [9, 10, 13, 22, 28, 29]
    cache.prepare_snapshots(offsets)
    write(cache, *range(9, 29))
    taken = cache.take_snapshots()
    assert [s.size() > 0 for s in taken] == [True, True, True, True, False, False]
    for snapshot, offset in zip(taken, offsets, strict=True):
        assert cache.restore(snapshot, offset)
        assert held(cache) == list(range(offset - 4, offset))


def test_the_child_supersedes_its_parent():
    """ROT-19."""
    cache = made()
    write(cache, 0, 1, 2)
    parent, child = cache.snapshot(0), cache.snapshot(0)
    assert cache.split(child, 1) == (None, child)
    assert cache.split(None, 1) == (None, None)
    assert cache.merge(parent, child) is child
    assert cache.merge(child, None) is None
    for snapshot in (parent, child):
        with pytest.raises(AssertionError, match="closed twice"):
            snapshot.close()


def test_live_bytes_are_those_of_the_rows_held():
    """ROT-21."""
    cache = made(window=4, slack=3)
    write(cache, 1, 2)
    assert cache.nbytes() == 2 * TINY.row_bytes
    write(cache, *range(40))
    assert cache.nbytes() == 7 * TINY.row_bytes
    cache.free()
    assert (cache.nbytes(), cache.offset) == (0, 0)


def test_appliers_of_sibling_layers_are_equal():
    """RAP-1: so that they share one mask tensor; another window, position or width differs."""
    one, other = made(), made()
    for cache in (one, other):
        write(cache, *range(9))
    keys = [cache.view().applier.key for cache in (one, other)]
    assert keys[0] == keys[1]
    write(other, 9)
    assert other.view().applier.key != keys[0]
    assert len({WindowApplier(*args).key for args in ((4, 0, 8), (5, 0, 8), (4, 1, 8))}) == 3


def test_a_single_query_needs_no_mask():
    """RAP-2, ROT-8: a decode step is handed its window alone; more queries than columns are
    a programming error.
    """
    cache = made(window=4, slack=3)
    for _ in range(30):
        history = write(cache, 1)
        assert not history.applier.needed(1)
    assert write(cache, 1, 2).applier.needed(2)
    with pytest.raises(AssertionError):
        history.applier.needed(5)


@pytest.mark.parametrize("mask", [CAUSAL, NONE, relax(CAUSAL, [Rect(0, 5, 8, 5, 9)])])
def test_what_a_window_shows(mask):
    """RAP-3: above p - W; up to p, or further where a rectangle allows it."""
    window, oldest, columns = 3, 2, 8
    applier = WindowApplier(window, oldest, columns)
    positions = torch.arange(5, 10)[None]
    column = torch.arange(oldest, oldest + columns)[None]
    seen = applier.apply(mask, visible(mask, positions, column), positions)
    for query in range(5, 10):
        expected = {
            key
            for key in range(oldest, oldest + columns)
            if key > query - window
            and (key <= query or any(5 <= query < 8 and 5 <= key < 9 for _ in mask.rects))
        }
        assert set((seen[0, 0, query - 5].nonzero().flatten() + oldest).tolist()) == expected
