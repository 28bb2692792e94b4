"""Snapshots made of several pieces: what is copied and when, and what a failure leaves behind."""

import pytest
import torch

from fixtures.allocations import allocations
from forerun.cache.kv import KVCache
from forerun.cache.pieces import LazyPieces
from forerun.cache.rows import Rows, RowShape

TINY = RowShape(1, 1, 1, torch.float32, torch.device("cpu"))


def made(*, growing=False):
    return KVCache(TINY, 256, reserve=not growing, smallest_class=8)


def write(cache, *tokens):
    rows = torch.tensor(tokens, dtype=torch.float32).view(1, 1, -1, 1)
    cache.update(rows, -rows)


def held(cache):
    return cache.view().keys.flatten().tolist()


def parts(cache, step, count):
    """Adjacent snapshots over `count` tokens, named by their positions, `step` tokens each."""
    taken = []
    for start in range(cache.offset, count, step):
        write(cache, *range(start, start + step))
        taken.append(cache.snapshot(start))
    return taken


def joined(cache, taken):
    whole = taken[0]
    for part in taken[1:]:
        whole = cache.merge(whole, part)
    return whole


def mixed(cache):
    """[0, 12): lazy, owned, lazy. The cache is left at 6 tokens, 4 of which it shares."""
    taken = parts(cache, 4, 12)
    assert cache.restore(None, 4)
    write(cache, 70, 71)
    whole = joined(cache, taken)
    assert [piece.lazy is not None for piece in whole.pieces] == [True, False, True]
    return whole


def no_memory(*_):
    raise torch.OutOfMemoryError("no memory for rows")


def fails_after(calls, method):
    """`method`, as long as there is memory."""
    left = iter(range(calls))

    def limited(rows):
        return method(rows) if next(left, None) is not None else no_memory()

    return limited


@pytest.mark.parametrize("growing", [False, True])
def test_own_lazy_pieces_stay_where_they_are(growing):
    """KV-11, KV-4: between them owned rows return to their place, also into a larger buffer; what
    others name there is copied out first.
    """
    cache = made(growing=growing)
    whole = mixed(cache)
    other = cache.snapshot(0)
    size = whole.size()
    for target in (12, 9, 5, 12):
        assert cache.restore(whole, target)
        assert held(cache) == list(range(target))
    assert whole.size() == size == 4 * TINY.row_bytes
    assert other.size() == 6 * TINY.row_bytes
    assert cache.restore(other, 6)
    assert held(cache) == [0, 1, 2, 3, 70, 71]


def test_a_buffer_that_grows_in_a_restore_takes_lazy_rows_along():
    """KV-5, KV-1: though they lie ahead of the offset."""
    cache, other = made(growing=True), made(growing=True)
    lazy = parts(cache, 4, 8)[1]
    first, _, *last = parts(other, 4, 20)
    whole = joined(cache, [first, lazy, *last])
    assert cache.restore(None, 1)
    assert cache.restore(whole, 20)
    assert held(cache) == list(range(20))
    assert lazy not in whole.pieces
    assert [piece.lazy is not None for piece in whole.pieces] == [False, True, False]


def test_pieces_of_two_caches_do_not_become_one():
    """KV-12: though both are lazy and meet."""
    cache, other = made(), made()
    before, after = parts(cache, 4, 8)[0], parts(other, 4, 8)[1]
    whole = cache.merge(before, after)
    assert len(whole.pieces) == 2
    assert cache.merge_frees(whole, None) == cache.merge_frees(None, whole) == 0
    other.free()
    assert cache.merge_frees(whole, None) == whole.size() == 4 * TINY.row_bytes
    assert cache.restore(whole, 8)
    assert held(cache) == list(range(8))


def test_merging_a_stored_path_allocates_nothing():
    """ACC-4, EVI-4, 02 regression 18: however long it is, there is never a second copy of it."""
    shape = RowShape(2, 64, 64, torch.float32, torch.device("cpu"))
    cache, rows = KVCache(shape, 4096), torch.ones(1, 2, 64, 64)
    taken = []
    for start in range(0, 4096, 64):
        cache.update(rows, rows)
        taken.append(cache.snapshot(start))
    cache.free()
    bytes_before, whole = sum(s.size() for s in taken), []
    assert allocations(lambda: whole.append(joined(cache, taken))) == []
    assert whole[0].size() == bytes_before == 4096 * shape.row_bytes


def test_a_cut_at_a_border_copies_nothing():
    """KV-13, KV-8: elsewhere it copies the one piece that it goes through, and frees that."""
    cache = made()
    taken = parts(cache, 4, 16)
    cache.free()
    whole, pair = joined(cache, taken), []
    assert allocations(lambda: pair.extend(cache.split(whole, 8))) == []
    assert [part.size() for part in pair] == [8 * TINY.row_bytes] * 2
    before, after = cache.split(pair[1], 11)
    assert [piece.size() for piece in before.pieces] == [3 * TINY.row_bytes]
    assert [piece.size() for piece in after.pieces] == [TINY.row_bytes, 4 * TINY.row_bytes]
    for part in (pair[0], before, after):
        assert cache.restore(part, part.end)
    assert held(cache) == list(range(16))


def test_a_split_cuts_anothers_lazy_rows_in_place():
    """KV-13: whichever cache is asked, no copy is made."""
    cache, other = made(), made()
    (lazy,) = parts(other, 8, 8)
    before, after = cache.split(lazy, 3)
    assert before.size() == after.size() == 0
    other.free()
    assert (before.size(), after.size()) == (3 * TINY.row_bytes, 5 * TINY.row_bytes)


def test_each_byte_is_heard_once():
    """ACC-1, ACC-2: piece by piece, by whoever holds the piece at that time."""
    cache, first, second = made(), [], []
    a, b, c = parts(cache, 4, 12)
    for part in (a, b, c):
        part.set_materialize_hook(first.append)
    assert cache.restore(None, 10)
    write(cache, 70)  # copies `c` out
    whole = joined(cache, [a, b, c])
    whole.set_materialize_hook(second.append)
    cache.free()
    assert (first, second) == ([4 * TINY.row_bytes], [8 * TINY.row_bytes])
    assert sum(first + second) == whole.size()
    for part in (a, b, c):
        with pytest.raises(AssertionError, match="closed twice"):
            part.close()


def test_who_gave_a_snapshot_away_hears_no_more_of_it():
    """ACC-2, CTR-4: merged and split alike, also where its new holder does not listen."""
    cache, other = made(), made()
    (a, b), (_, _, c, d) = parts(cache, 4, 8), parts(other, 4, 16)
    for part in (a, b, c, d):
        part.set_materialize_hook(lambda _: pytest.fail("heard"))
    kept = cache.split(cache.merge(cache.merge(a, b), c), 2)
    cache.merge(None, d)
    cache.free()
    other.free()
    assert sum(part.size() for part in kept) == 12 * TINY.row_bytes


@pytest.mark.parametrize("kind", ["lazy", "owned", "mixed"])
def test_split_and_merged_again_it_restores_the_same(kind):
    """R9, CMP-6, KV-13: wherever it is cut, again and again."""
    cache = made()
    whole = mixed(cache) if kind == "mixed" else joined(cache, parts(cache, 4, 12))
    if kind == "owned":
        cache.free()
    size = whole.size()
    for at in (*range(-1, 14), *range(11, 0, -3)):
        before, after = cache.split(whole, at)
        assert (before is None, after is None) == (at <= 0, at >= 12)
        whole = cache.merge(before, after) if before and after else before or after
        assert (whole.start, whole.end, whole.size()) == (0, 12, size)
        assert cache.restore(whole, 12)
        assert held(cache) == list(range(12))


@pytest.mark.parametrize("copied", [0, 1, 2])
def test_a_copy_out_that_fails_midway_loses_nothing(copied, monkeypatch):
    """ACC-1, KV-5, KV-9: what was copied is owned and heard, the rest stays lazy and known."""
    cache, heard = made(), []
    taken = parts(cache, 4, 12)
    for part in taken:
        part.set_materialize_hook(heard.append)
    with monkeypatch.context() as patch:
        patch.setattr(Rows, "compact", fails_after(copied, Rows.compact))
        with pytest.raises(torch.OutOfMemoryError):
            cache.free()
    assert heard == [4 * TINY.row_bytes] * copied
    assert [part.size() > 0 for part in taken] == [i < copied for i in range(3)]
    assert held(cache) == list(range(12))
    cache.free()
    assert sum(heard) == sum(part.size() for part in taken) == 12 * TINY.row_bytes
    for part in taken:
        assert cache.restore(part, part.end)
    assert held(cache) == list(range(12))


def test_a_restore_that_fails_changes_nothing(monkeypatch):
    """CTR-5, KV-11: no row has moved where not all that it overwrites could be saved."""
    cache = made()
    whole, before = mixed(cache), held(cache)
    other = cache.snapshot(0)
    with monkeypatch.context() as patch:
        patch.setattr(Rows, "compact", no_memory)
        with pytest.raises(torch.OutOfMemoryError):
            cache.restore(whole, 12)
    assert held(cache) == before
    for snapshot, tokens in ((whole, list(range(12))), (other, before)):
        assert cache.restore(snapshot, snapshot.end)
        assert held(cache) == tokens


def test_a_restore_that_breaks_off_leaves_what_came_before_it(monkeypatch):
    """KV-11: the rows on their way are in doubt, so they are not held."""
    cache, other = made(), made()
    _, *foreign = parts(other, 4, 12)
    write(cache, *range(6))
    snapshot = cache.merge(*foreign)
    with monkeypatch.context() as patch:
        patch.setattr(Rows, "copy_from", no_memory)
        with pytest.raises(torch.OutOfMemoryError):
            cache.restore(snapshot, 12)
    assert held(cache) == [0, 1, 2, 3]
    assert cache.restore(snapshot, 12)
    assert held(cache) == list(range(12))


@pytest.mark.parametrize("copied", [0, 1])
def test_a_split_that_fails_leaves_the_whole(copied, monkeypatch):
    """CTR-4, KV-13: its holder holds it still."""
    cache = made()
    whole = joined(cache, parts(cache, 4, 12))
    cache.free()
    with monkeypatch.context() as patch:
        patch.setattr(Rows, "compact", fails_after(copied, Rows.compact))
        with pytest.raises(torch.OutOfMemoryError):
            cache.split(whole, 6)
    assert whole.size() == 12 * TINY.row_bytes
    assert cache.restore(whole, 12)
    assert held(cache) == list(range(12))
    whole.close()


class Position(int):
    """Counts how often anybody compares it."""

    compared = 0

    def _counted(method):
        def compare(self, other):
            Position.compared += 1
            return method(self, other)

        return compare

    __lt__, __le__ = _counted(int.__lt__), _counted(int.__le__)
    __gt__, __ge__ = _counted(int.__gt__), _counted(int.__ge__)


def test_a_step_after_a_rewind_looks_at_the_snapshots_once():
    """KV-4: with a long path ahead, a decode step costs what it costs without one."""
    rows = Rows(*[torch.zeros(1, 1, 1000, 1)] * 2)
    pieces, scan = LazyPieces(rows.part), 8 * 100
    ahead = [pieces.issue(Position(at), Position(at + 2)) for at in range(500, 700, 2)]
    Position.compared = 0
    for at in range(100, 500):
        pieces.save_within(at, at + 1)
    assert 0 < Position.compared <= scan
    pieces.save_within(500, 502)
    assert [piece.lazy is None for piece in ahead] == [True] + [False] * 99
    Position.compared = 0
    for at in range(300, 502):  # a second rewind
        pieces.save_within(at, at + 1)
    assert 0 < Position.compared <= scan
    pieces.save_within(502, 503)
    assert ahead[1].lazy is None
