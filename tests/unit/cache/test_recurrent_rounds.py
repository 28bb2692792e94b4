"""Rounds over a recurrent layer: inputs kept, captures that are counts of them, and their cost."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from fixtures.allocations import allocations
from fixtures.numbered_states import (
    SHAPE,
    STATE_BYTES,
    fill,
    latest,
    play,
    put,
    state_of,
)
from forerun.cache.places import Place
from forerun.cache.recurrent import RecurrentCache
from forerun.contract.recurrence import RecurrentInputs, RecurrentUpdate


@pytest.fixture
def cache():
    """At offset 1, in a state of ones."""
    made = RecurrentCache(SHAPE, latest)
    put(made, 1, 1)
    return made


def number(cache):
    """What the delta state is, without folding anything in."""
    [found] = set(cache.snapshot(0).state.delta.flatten().tolist())
    return found


def tail(state):
    return state.conv[0, :, 0].tolist()


def test_a_round_is_asked_for_its_inputs_and_for_no_state(cache):
    """REC-5: and what it is given for them fits, whatever the activations are."""
    shape = replace(SHAPE, dtype=torch.bfloat16)
    cache = RecurrentCache(shape)
    cache.prepare_snapshots([1, 2])
    write = cache.begin_write(4)
    assert (write.update.end, write.update.splits, write.folded) == (None, (), None)
    assert write.splits == (1, 2)
    inputs = write.update.inputs
    shapes = [inputs.conv, inputs.keys, inputs.values, inputs.decay, inputs.beta]
    assert [tuple(rows.shape) for rows in shapes] == [
        (1, 4, 10),
        (1, 4, 1, 4),
        (1, 4, 2, 3),
        (1, 4, 2),
        (1, 4, 2),
    ]
    assert [rows.dtype for rows in shapes] == [torch.bfloat16] + [torch.float32] * 4


@pytest.mark.parametrize(
    ("tokens", "due", "inputs"),
    [(16, [5], True), (17, [5], False), (4, [], False), (4, [5], False), (1, [2], False)],
)
def test_only_a_round_keeps_inputs(cache, tokens, due, inputs):
    """REC-5: what is wider than a verification, or has nothing due inside, brings its end."""
    cache.prepare_snapshots(due)
    write = cache.begin_write(tokens)
    assert (write.update.inputs is not None) == inputs
    assert (write.update.end is None) == inputs
    assert len(write.update.splits) == (0 if inputs else len(write.splits))


def test_captures_of_a_round_are_counts_of_its_inputs(cache):
    """REC-5, ACC-1, PND-5: they own nothing, and say what they would own."""
    play(cache, [2, 3, 4, 5])
    taken = cache.take_snapshots()
    assert [(s.start, s.end) for s in taken] == [(1, 2), (2, 3), (3, 4)]
    assert [(s.size(), s.lazy_bytes()) for s in taken] == [(0, STATE_BYTES)] * 3
    assert [float(s.state.delta.max()) for s in taken] == [2, 3, 4]
    assert [tail(s.state) for s in taken] == [[1, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert (cache.offset, number(cache)) == (5, 5)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_restore_of_an_own_capture_moves_nothing(cache, kept):
    """REC-7, REW-1, REW-3: and allocates nothing; the write after it folds in what stands."""
    play(cache, [2, 3, 4, 5])
    taken = cache.take_snapshots()
    versions = [part._version for part in storage(cache)]
    assert allocations(lambda: cache.restore(taken[kept - 1], 1 + kept)) == []
    assert [part._version for part in storage(cache)] == versions
    assert (cache.offset, taken[kept - 1].size()) == (1 + kept, 0)
    write = cache.begin_write(1)
    assert write.pending.values[0, :, 0, 0].tolist() == [2, 3, 4][:kept]
    assert write.before.delta.eq(1).all()
    assert tail(write.before) == [1, 1, 1, 2, 3, 4][kept : kept + 3]
    assert write.folded is None


def storage(cache):
    """All live tensors."""
    places = [place for place in (cache._live, cache._other) if place is not None]
    return [part for place in places for part in (place._conv, place._delta, *place._fed)]


def test_a_round_behind_a_round_says_what_its_inputs_start_from(cache):
    """REC-5: the folded state and the tail there are the state before the new inputs."""
    play(cache, [2, 3, 4])
    [first, _] = cache.take_snapshots()
    assert cache.restore(first, 2)
    first.close()
    write = play(cache, [6, 7, 8, 9])
    assert write.pending.values[0, :, 0, 0].tolist() == [2]
    taken = cache.take_snapshots()
    assert [tail(s.state) for s in taken] == [[1, 2, 6], [2, 6, 7], [6, 7, 8]]
    assert cache.restore(taken[0], 3)
    assert tail(cache.begin_write(1).before) == [1, 2, 6]


def test_nothing_of_a_write_that_was_undone_counts(cache):
    """WRT-2, law 7: not the fold either, which a layer may or may not have come to."""
    play(cache, [2, 3, 4])
    cache.take_snapshots()
    cache.prepare_snapshots([5, 6])
    for each in (3, 1):
        write = cache.begin_write(each)
        poison(write)
        cache.put(write.update.of(0))
        assert (cache.offset, number(cache)) == (4, 4)
    again = cache.begin_write(3)
    assert again.pending.values[0, :, 0, 0].tolist() == [2, 3, 4]
    assert again.before.delta.eq(1).all()
    assert tail(again.before) == [2, 3, 4]


def poison(write):
    update = write.update
    filled = [] if write.folded is None else [write.folded]
    if update.end is not None:
        filled += [update.end.conv, update.end.delta]
    if update.inputs is not None:
        filled += [getattr(update.inputs, name) for name in RecurrentInputs.__slots__]
    for part in filled:
        part.fill_(float("nan"))


def test_a_round_counts_as_far_as_it_is_put(cache):
    """Law 7: the captures beyond are never reached."""
    cache.prepare_snapshots([2, 3, 4])
    write = cache.begin_write(5)
    fill(write, [2, 3, 9, 9, 9])
    cache.put(write.update.of(2))
    assert (cache.offset, number(cache)) == (3, 3)
    first, second, third = cache.take_snapshots()
    assert third is None
    assert [float(s.state.delta.max()) for s in (first, second)] == [2, 3]
    assert second.size() == 0


def test_a_capture_at_the_start_or_the_end_of_a_round_is_lazy_too(cache):
    """PND-3, PND-8: one that a restore arrived at among them."""
    other = RecurrentCache(SHAPE, latest)
    put(other, 4, 7)
    cache.prepare_snapshots([4, 5, 6])
    assert cache.restore(other.snapshot(0), 4)
    write = cache.begin_write(2)
    fill(write, [8, 9])
    cache.put(write.update)
    taken = cache.take_snapshots()
    assert [(s.start, s.end, s.size()) for s in taken] == [(1, 4, 0), (4, 5, 0), (5, 6, 0)]
    assert [float(s.state.delta.max()) for s in taken] == [7, 8, 9]
    assert cache.restore(taken[0], 4)
    assert number(cache) == 7
    assert cache.begin_write(1).pending is None


@pytest.mark.parametrize("tokens", [0, 1])
def test_a_capture_due_where_inputs_are_pending_has_them_folded_in(cache, tokens):
    """PND-3, PND-8, REC-5: of a write that brings an end state, or that comes to nothing."""
    play(cache, [2, 3, 4])
    first, second = cache.take_snapshots()
    assert cache.restore(first, 2)
    cache.prepare_snapshots([3, 9])
    assert cache.restore(second, 3)
    write = cache.begin_write(1)
    cache.put(write.update.of(tokens))
    taken, missing = cache.take_snapshots()
    assert missing is None
    assert (taken.end, taken.size()) == (3, STATE_BYTES)
    assert taken.state.delta.eq(3).all()
    assert tail(taken.state) == [1, 2, 3]


def test_get_folds_in_what_is_pending(cache):
    """REC-2: into the other place, so that captures go on naming this one."""
    play(cache, [2, 3, 4])
    taken = cache.take_snapshots()
    state = cache.get(1, torch.float32)
    assert state.delta.eq(4).all()
    assert tail(state) == [2, 3, 4]
    assert [s.size() for s in taken] == [0, 0]
    assert cache.restore(taken[0], 2)
    assert number(cache) == 2
    play(cache, [5, 6])
    cache.take_snapshots()[0].close()
    assert [s.size() for s in taken] == [0, 0]
    assert cache.get(1, torch.float32).delta.eq(6).all()
    assert [s.size() for s in taken] == [STATE_BYTES] * 2
    assert [float(s.state.delta.max()) for s in taken] == [2, 3]


def test_a_snapshot_of_what_is_pending_owns_it_and_leaves_it_pending(cache):
    """REC-6, ACC-3"""
    play(cache, [2, 3, 4])
    taken = cache.snapshot(0)
    assert (taken.size(), taken.lazy_bytes(), taken.end) == (STATE_BYTES, 0, 4)
    assert taken.state.delta.eq(4).all()
    assert cache.begin_write(1).pending is not None


def test_captures_are_copied_out_once_before_what_they_name_is_overwritten(cache):
    """REC-5, ACC-1, REW-2: the write after the next one would."""
    play(cache, [2, 3, 4])
    taken, heard = cache.take_snapshots(), []
    for snapshot in taken:
        snapshot.set_materialize_hook(heard.append)
    assert cache.restore(taken[0], 2)
    play(cache, [5, 6])
    cache.take_snapshots()[0].close()
    assert ([s.size() for s in taken], heard) == ([0, 0], [])
    play(cache, [7, 8])
    cache.take_snapshots()[0].close()
    assert ([s.size() for s in taken], heard) == ([STATE_BYTES] * 2, [STATE_BYTES] * 2)
    play(cache, [9, 9])
    cache.take_snapshots()[0].close()
    assert len(heard) == 2
    assert [float(s.state.delta.max()) for s in taken] == [2, 3]
    assert [tail(s.state) for s in taken] == [[1, 1, 2], [1, 2, 3]]
    assert cache.restore(taken[1], 3)
    assert number(cache) == 3


def test_a_closed_capture_is_not_copied_out(cache):
    """REW-2, CTR-3: and nothing is heard of one whose holder has let go of its hook."""
    play(cache, [2, 3, 4])
    taken, heard = cache.take_snapshots(), []
    taken[0].set_materialize_hook(heard.append)
    taken[1].set_materialize_hook(heard.append)
    taken[0].close()
    taken[1].set_materialize_hook(None)
    cache.free()
    assert heard == []
    assert taken[1].size() == STATE_BYTES
    with pytest.raises(AssertionError, match="after close"):
        taken[0].lazy_bytes()


def test_a_write_that_cannot_copy_out_has_begun_nothing(cache, monkeypatch):
    """WRT-2, REQ-3: the captures in its way stay lazy, and known."""

    def fails(*_):
        raise torch.OutOfMemoryError("no memory for a capture")

    play(cache, [2, 3, 4])
    taken = cache.take_snapshots()
    play(cache, [5, 6])
    cache.take_snapshots()[0].close()
    with monkeypatch.context() as patch:
        patch.setattr(Place, "folded", fails)
        for tokens in (1, 20):
            with pytest.raises(torch.OutOfMemoryError):
                cache.begin_write(tokens)
    assert [s.size() for s in taken] == [0, 0]
    write = cache.begin_write(1)
    assert [s.size() for s in taken] == [STATE_BYTES] * 2
    assert tail(write.before) == [4, 5, 6]
    assert taken[1].state.delta.eq(3).all()


def test_free_copies_lazy_captures_out_first(cache):
    """R11, PND-7: those of a schedule that nobody has taken are closed."""
    play(cache, [2, 3, 4])
    taken, heard = cache.take_snapshots(), []
    taken[0].set_materialize_hook(heard.append)
    taken[1].close()
    play(cache, [5, 6, 7])
    gc.collect()
    scheduled = weakref.ref(cache._schedule._captured[5])
    cache.free()
    gc.collect()
    assert scheduled() is None
    assert (heard, cache.nbytes()) == ([STATE_BYTES], 0)
    assert cache.restore(taken[0], 2)
    assert number(cache) == 2


def test_another_cache_takes_a_lazy_capture_and_leaves_it_lazy(cache):
    """CTR-6, REC-7"""
    other = RecurrentCache(SHAPE, latest)
    play(cache, [2, 3, 4])
    taken = cache.take_snapshots()
    assert other.restore(taken[1], 3)
    assert (other.offset, held_delta(other), taken[1].size()) == (3, 3, 0)
    assert not other.restore(taken[1], 2)
    play(other, [8, 9])
    assert taken[1].state.delta.eq(3).all()


def held_delta(cache):
    return float(cache.get(1, torch.float32).delta.max())


def test_what_is_restored_over_a_place_lets_its_captures_be_copied_out(cache):
    """CTR-6, REW-2: as does a state that somebody puts without a write."""
    kept = cache.snapshot(0)
    play(cache, [2, 3, 4])
    first, second = cache.take_snapshots()
    assert cache.restore(kept, 1)
    assert [s.size() for s in (first, second)] == [STATE_BYTES] * 2
    play(cache, [5, 6])
    [third] = cache.take_snapshots()
    cache.get(1, torch.float32)
    cache.put(RecurrentUpdate(state_of(7), (1,)))
    assert third.size() == 0
    cache.put(cache.begin_write(1).update)
    assert third.size() == STATE_BYTES
    assert [float(s.state.delta.max()) for s in (first, second, third)] == [2, 3, 5]


def test_a_merge_counts_what_a_lazy_parent_owns():
    """REC-8, ACC-2, 02 EVI-9: which is nothing."""
    cache = RecurrentCache(SHAPE, latest)
    put(cache, 1, 1)
    play(cache, [2, 3, 4])
    parent, child = cache.take_snapshots()
    assert cache.merge_frees(parent, child) == 0
    assert cache.merge(parent, child) is child
    assert len(cache._lazy._open) == 1
    assert cache.split(child, 2) == (None, child)
