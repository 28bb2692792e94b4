"""Writes that a driver begins and ends itself: what it is given, and what is refused meanwhile."""

from dataclasses import replace

import pytest
import torch

from fixtures.numbered_states import SHAPE, held, put, state_of
from forerun.cache.recurrent import RecurrentCache, StateShape
from forerun.contract.recurrence import RecurrentUpdate


def test_a_drivers_tensors_stay_where_they_are():
    """CTR-8, WRT-6: one set of addresses for every write, with more where more is due."""
    cache = RecurrentCache(SHAPE)
    put(cache, 1, 1)
    generation, live = cache.generation, cache.get(1, torch.float32)
    write = cache.begin_write(3)
    assert write.before is live
    assert (write.splits, write.update.splits) == ((), ())
    cache.put(replace(write.update, lengths=(0,)))
    cache.prepare_snapshots([2, 3])
    again = cache.begin_write(3)
    assert again.splits == (1, 2)
    assert again.before is write.before
    assert again.update.end is write.update.end
    assert len(again.update.splits) == 2
    cache.put(again.update)
    assert cache.begin_write(1).before is write.before
    assert cache.generation == generation


def test_what_a_driver_leaves_in_its_tensors_later_changes_no_capture():
    """Law 4: they are the same tensors in every write."""
    cache = RecurrentCache(SHAPE)
    put(cache, 1, 1)
    cache.prepare_snapshots([2, 3])
    write = cache.begin_write(2)
    [inner] = write.update.splits
    inner.delta.fill_(5)
    write.update.end.delta.fill_(6)
    cache.put(write.update)
    inner.delta.fill_(float("nan"))
    write.update.end.delta.fill_(float("nan"))
    first, second = cache.take_snapshots()
    assert first.state.delta.eq(5).all()
    assert second.state.delta.eq(6).all()
    assert cache.get(1, torch.float32).delta.eq(6).all()


def test_a_write_that_ends_short_fires_what_it_reaches():
    """Law 7, WRT-2: the states beyond are of tokens that were not written."""
    cache = RecurrentCache(SHAPE)
    put(cache, 1, 1)
    cache.prepare_snapshots([2, 3, 4])
    write = cache.begin_write(4)
    for number, state in enumerate(write.update.splits, start=10):
        state.delta.fill_(number)
    write.update.end.delta.fill_(20)
    cache.put(replace(write.update, lengths=(2,)))
    assert cache.offset == 3
    first, second, third = cache.take_snapshots()
    assert first.state.delta.eq(10).all()
    assert second.state.delta.eq(20).all()
    assert third is None


CALLS = {
    "begin_write": lambda cache: cache.begin_write(1),
    "get": lambda cache: cache.get(1, torch.float32),
    "snapshot": lambda cache: cache.snapshot(0),
    "prepare_snapshots": lambda cache: cache.prepare_snapshots([5]),
    "restore": lambda cache: cache.restore(None, 1),
    "free": lambda cache: cache.free(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_nothing_else_is_asked_of_a_cache_while_a_write_is_open(call):
    """WRT-3"""
    cache = RecurrentCache(SHAPE)
    put(cache, 1, 1)
    write = cache.begin_write(2)
    with pytest.raises(AssertionError, match="has not ended"):
        call(cache)
    cache.put(write.update)
    call(cache)


def test_a_refused_end_has_ended_the_write():
    """WRT-2, REQ-3: more tokens than were announced."""
    cache = RecurrentCache(SHAPE)
    put(cache, 1, 1)
    write = cache.begin_write(2)
    with pytest.raises(AssertionError):
        cache.put(replace(write.update, lengths=(3,)))
    assert (cache.offset, held(cache)) == (1, 1)


def test_a_write_before_the_state_is_known_is_an_error():
    cache = RecurrentCache(SHAPE)
    with pytest.raises(AssertionError, match="asked for the state"):
        cache.begin_write(1)
    with pytest.raises(AssertionError, match="asked for the state"):
        cache.put(RecurrentUpdate(state_of(1), (1,)))


def test_a_write_that_cannot_begin_has_begun_nothing(monkeypatch):
    """WRT-2, REQ-3"""

    def fails(*_):
        raise torch.OutOfMemoryError("no memory for the results")

    cache = RecurrentCache(SHAPE)
    put(cache, 1, 1)
    with monkeypatch.context() as patch:
        patch.setattr(StateShape, "zeros", fails)
        with pytest.raises(torch.OutOfMemoryError):
            cache.begin_write(2)
    assert (cache.offset, held(cache)) == (1, 1)
    cache.put(cache.begin_write(2).update)
    assert cache.offset == 3
