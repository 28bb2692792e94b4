"""Who can go back live, what it costs to refuse a draft, and what is in the way of a restore."""

from itertools import product

import pytest
import torch

from fixtures.allocations import allocations
from forerun.cache.kv import KVCache
from forerun.cache.rotating import RotatingCache
from forerun.cache.rows import RowShape

TINY = RowShape(1, 1, 1, torch.float32, torch.device("cpu"))
WINDOW, SLACK = 4, 4
WRAP = WINDOW + 2 * SLACK
KINDS = {"kv": lambda: KVCache(TINY, 256), "rotating": lambda: RotatingCache(TINY, WINDOW, SLACK)}


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def make(request):
    return request.param


def write(cache, *tokens):
    rows = torch.tensor(tokens, dtype=torch.float32).view(1, 1, -1, 1)
    cache.update(rows, -rows)


def filled(make, count):
    cache = make()
    for token in range(count):
        write(cache, token)
    return cache


def held(cache):
    view = cache.view()
    return view.oldest, view.keys.flatten().tolist(), view.values.flatten().tolist()


def roll_back(cache, snapshot, target):
    """As a round does: live, else from what was captured there."""
    return cache.restore(None, target) or cache.restore(snapshot, target)


@pytest.mark.parametrize("drafted", range(1, SLACK + 1))
def test_refusing_a_draft_is_as_if_it_was_never_written(make, drafted):
    """R15, REW-1: before, at and after the wrap, of any length up to the slack."""
    for count, kept in product(range(2 * WRAP), range(drafted)):
        cache, never = filled(make, count), filled(make, count + kept)
        write(cache, *range(count, count + kept), *[-7] * (drafted - kept))
        assert cache.restore(None, count + kept)
        assert held(cache) == held(never)
        for one in (cache, never):
            write(one, 50, 51)
        assert held(cache) == held(never)


def test_what_a_rewind_dropped_is_not_seen_again(make):
    """R3, ROT-6: neither leftovers of the rewind nor, through them, rows that were pushed out."""
    for count, back in product(range(1, 2 * WRAP), range(1, SLACK + 1)):
        cache, never = filled(make, count), make()
        kept = max(0, count - back)
        assert cache.restore(None, kept)
        write(never, *range(kept), *range(100, 107))
        for token in range(100, 107):
            write(cache, token)
        assert held(cache) == held(never)


def test_refusing_a_draft_allocates_nothing(make):
    """REW-3: before, at and after the wrap; nor is a checkpoint before it copied out for it."""
    cache = filled(make, 1)
    rows, refused = torch.ones(1, 1, SLACK, 1), []
    checkpoint = cache.snapshot(0)
    if isinstance(cache, RotatingCache):
        checkpoint.close()  # its row is pushed out in time, drafts or not

    def rounds():
        for _ in range(3 * WRAP):
            cache.update(rows, rows)
            refused.append(cache.restore(None, cache.offset - SLACK + 1))

    assert allocations(rounds) == []
    assert all(refused)
    assert cache.offset == 1 + 3 * WRAP


def test_siblings_are_closed_before_one_is_restored():
    """REW-2: a restore that overwrites rows copies every lazy sibling out."""

    def copied(*, close):
        cache, heard = RotatingCache(TINY, WINDOW, SLACK), []
        write(cache, *range(WRAP))
        cache.prepare_snapshots([WRAP + 2, WRAP + 12, WRAP + 14])
        write(cache, *range(WRAP, WRAP + 16))
        early, *siblings = cache.take_snapshots()
        assert early.size() > 0
        for snapshot in siblings:
            snapshot.set_materialize_hook(heard.append)
            if close:
                snapshot.close()
        assert roll_back(cache, early, WRAP + 2)
        assert held(cache)[1] == list(range(WRAP - 2, WRAP + 2))
        return sum(heard)

    assert copied(close=True) == 0
    assert copied(close=False) == 2 * WINDOW * TINY.row_bytes


def test_a_rewind_too_far_is_refused_and_the_capture_there_restores():
    """REW-1, ROT-14: further than the slack only the snapshot goes back, at its end."""
    cache = filled(KINDS["rotating"], WRAP)
    offsets = [WRAP, WRAP + 3, WRAP + 9]
    cache.prepare_snapshots(offsets)
    write(cache, *range(WRAP, WRAP + 40))
    captured = cache.take_snapshots()
    for snapshot, offset in zip(captured, offsets, strict=True):
        assert not cache.restore(None, offset)
        assert not cache.restore(snapshot, offset - 1)
        assert roll_back(cache, snapshot, offset)
        assert held(cache)[1] == list(range(offset - WINDOW, offset))


def test_all_layers_end_on_the_same_offset():
    """REW-4: after any rollback of a round, before and after the wrap, each its own way."""
    layers = [make() for make in KINDS.values()]
    drafted = SLACK + 3  # more than a live rewind reaches
    tokens = []
    for step in range(40):
        offset, accepted = len(tokens), step % drafted + 1
        new = list(range(100 * step, 100 * step + drafted))
        for cache in layers:
            cache.prepare_snapshots(range(offset + 1, offset + drafted + 1))
            write(cache, *new)
            captured = cache.take_snapshots()
            chosen = captured.pop(accepted - 1)
            for other in captured:
                other.close()
            assert roll_back(cache, chosen, offset + accepted)
            chosen.close()
        tokens += new[:accepted]
        assert {cache.offset for cache in layers} == {len(tokens)}
        full, window = (held(cache)[1] for cache in layers)
        assert (full, window) == (tokens, tokens[-WINDOW:])
