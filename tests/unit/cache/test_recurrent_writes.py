"""Writes that a driver begins and ends itself: what it is given, and what is refused meanwhile."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from fixtures.numbered_states import SHAPE, STATE_BYTES, held, put, state_of
from forerun.cache.places import Place
from forerun.cache.recurrent import RecurrentCache
from forerun.contract.recurrence import RecurrentUpdate, StateShape


def copying():
    """A cache as on devices with captured graphs."""
    return RecurrentCache(SHAPE, replay=False)


def test_a_drivers_tensors_stay_where_they_are():
    """CTR-8, WRT-6: one set of addresses for every write, with more where more is due."""
    cache = copying()
    put(cache, 1, 1)
    generation, live = cache.generation, cache.get(1, torch.float32)
    write = cache.begin_write(3)
    assert write.before is live
    assert (write.pending, write.folded) == (None, None)
    assert (write.splits, write.update.splits) == ((), ())
    cache.put(write.update.of(0))
    cache.prepare_snapshots([2, 3])
    again = cache.begin_write(3)
    assert again.splits == (1, 2)
    assert again.before is write.before
    assert again.update.end is write.update.end
    assert again.update.inputs is None
    cache.put(again.update)
    cache.take_snapshots()
    cache.prepare_snapshots([5])
    third = cache.begin_write(2)
    assert third.before is write.before
    assert third.update.splits[0] is again.update.splits[0]
    assert cache.generation == generation


def test_on_a_cpu_two_places_take_turns():
    """Law 8: nothing is copied from where a layer leaves its results."""
    cache = RecurrentCache(SHAPE)
    put(cache, 1, 1)
    generation, seen = cache.generation, []
    for number in range(2, 8):
        write = cache.begin_write(1)
        assert write.before.delta.eq(number - 1).all()
        write.update.end.conv.fill_(number)
        write.update.end.delta.fill_(number)
        seen.append((write.before.delta.data_ptr(), write.update.end.delta.data_ptr()))
        cache.put(write.update)
        assert held(cache) == number
    assert seen[0] == seen[1][::-1]
    assert seen == seen[:2] * 3
    assert cache.generation == generation


@pytest.mark.parametrize("replay", [False, True])
def test_what_a_driver_leaves_in_its_tensors_later_changes_no_capture(replay):
    """Law 4: they are the same tensors in every write."""
    cache = RecurrentCache(SHAPE, replay=replay)
    put(cache, 1, 1)
    cache.prepare_snapshots([18, 19])
    write = cache.begin_write(18)
    [inner] = write.update.splits
    inner.delta.fill_(5)
    write.update.end.delta.fill_(6)
    cache.put(write.update)
    assert cache.get(1, torch.float32).delta.eq(6).all()
    cache.begin_write(1)
    places = (write.update.end, write.before)
    for state in places if replay else (inner, *places):  # else it is the capture's by now
        state.delta.fill_(float("nan"))
    first, second = cache.take_snapshots()
    assert first.state.delta.eq(5).all()
    assert second.state.delta.eq(6).all()
    assert first.size() == second.size() == STATE_BYTES


@pytest.mark.parametrize("replay", [False, True])
def test_a_write_that_ends_short_fires_what_it_reaches(replay):
    """Law 7, WRT-2: the states beyond are of tokens that were not written."""
    cache = RecurrentCache(SHAPE, replay=replay)
    put(cache, 1, 1)
    cache.prepare_snapshots([2, 3, 4])
    write = cache.begin_write(40)
    for number, state in enumerate(write.update.splits, start=10):
        state.delta.fill_(number)
    write.update.end.delta.fill_(20)
    cache.put(write.update.of(2))
    assert cache.offset == 3
    first, second, third = cache.take_snapshots()
    assert first.state.delta.eq(10).all()
    assert second.state.delta.eq(20).all()
    assert third is None


def test_captures_within_a_wide_write_are_what_it_was_given_to_fill():
    """ACC-3, ACC-4, CNV-3: made for it alone, they are copied no more; the others are let go of."""
    cache = RecurrentCache(SHAPE)
    put(cache, 1, 1)
    cache.prepare_snapshots([5, 9, 11, 30])
    write = cache.begin_write(40)
    for number, state in enumerate((*write.update.splits, write.update.end)):
        state.conv.fill_(number)
        state.delta.fill_(number)
    made = [state.delta.data_ptr() for state in write.update.splits[:2]]
    alive = [weakref.ref(state.delta) for state in write.update.splits]
    assert len(alive) == 4
    cache.put(write.update.of(10))
    del write, state
    gc.collect()
    assert [reference() is None for reference in alive] == [False, False, True, True]
    assert cache.nbytes() == 2 * STATE_BYTES
    *inner, end, beyond = cache.take_snapshots()
    assert [snapshot.state.delta.data_ptr() for snapshot in inner] == made
    assert [snapshot.size() for snapshot in (*inner, end)] == [STATE_BYTES] * 3
    assert beyond is None
    live = cache.get(1, torch.float32)
    assert end.state.delta.data_ptr() != live.delta.data_ptr()
    cache.put(cache.begin_write(40).update)
    assert [float(snapshot.state.conv.max()) for snapshot in inner] == [0, 1]
    for snapshot in (*inner, end):
        snapshot.close()
    gc.collect()
    assert [reference() for reference in alive] == [None] * 4


def test_where_graphs_know_the_states_of_a_write_captures_are_copies():
    """CTR-4, CTR-8: the next write fills the same ones."""
    cache = copying()
    put(cache, 1, 1)
    for number, offset in ((7, 5), (8, 25)):
        cache.prepare_snapshots([offset])
        write = cache.begin_write(20)
        write.update.splits[0].conv.fill_(number)
        cache.put(write.update)
        [taken] = cache.take_snapshots()
        assert taken.state.conv.data_ptr() != write.update.splits[0].conv.data_ptr()
        assert taken.state.conv.eq(number).all()


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
        cache.put(write.update.of(3))
    assert (cache.offset, held(cache)) == (1, 1)


def test_what_was_not_begun_cannot_be_put():
    """REC-4: the end of another write is not where the state is."""
    cache = RecurrentCache(SHAPE)
    put(cache, 1, 1)
    cache.begin_write(2)
    with pytest.raises(AssertionError, match="given to fill"):
        cache.put(RecurrentUpdate(state_of(7), (2,)))
    assert (cache.offset, held(cache)) == (1, 1)


def test_a_write_before_the_state_is_known_is_an_error():
    cache = RecurrentCache(SHAPE)
    with pytest.raises(AssertionError, match="asked for the state"):
        cache.begin_write(1)
    with pytest.raises(AssertionError, match="asked for the state"):
        cache.put(RecurrentUpdate(state_of(1), (1,)))


def test_a_shape_may_tell_the_dtype():
    """REC-2: then nobody has to ask for the state first, and another dtype is refused."""
    cache = RecurrentCache(replace(SHAPE, dtype=torch.bfloat16))
    write = cache.begin_write(1)
    assert write.before.conv.dtype is write.update.end.conv.dtype is torch.bfloat16
    assert not write.before.conv.any()
    assert not write.before.delta.any()
    cache.put(write.update.of(0))
    cache.free()
    with pytest.raises(AssertionError):
        cache.get(1, torch.float32)


@pytest.mark.parametrize("owner", ["place", "state"])
def test_a_write_that_cannot_begin_has_begun_nothing(owner, monkeypatch):
    """WRT-2, REQ-3"""

    def fails(*_):
        raise torch.OutOfMemoryError("no memory for the results")

    cache = RecurrentCache(SHAPE)
    put(cache, 1, 1)
    cache.prepare_snapshots([5])
    with monkeypatch.context() as patch:
        if owner == "place":
            patch.setattr(Place, "__init__", fails)
        else:
            patch.setattr(StateShape, "zeros", fails)
        with pytest.raises(torch.OutOfMemoryError):
            cache.begin_write(20)
    assert (cache.offset, held(cache)) == (1, 1)
    cache.put(cache.begin_write(20).update)
    assert cache.offset == 21
