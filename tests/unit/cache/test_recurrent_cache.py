"""The recurrent cache: dtypes, what is refused, what a driver is given, and what is kept alive."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from fixtures.numbered_states import SHAPE, STATE_BYTES, held, put, state_of
from forerun.cache import recurrent
from forerun.cache.places import Place
from forerun.cache.recurrent import RecurrentCache
from forerun.contract.cache import RecurrentLayerCache
from forerun.contract.recurrence import RecurrentState, RecurrentUpdate


def test_it_is_a_recurrent_layer_cache():
    """CTR-1, CTR-7"""
    assert isinstance(RecurrentCache(SHAPE), RecurrentLayerCache)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_conv_state_takes_the_activations_dtype_and_the_delta_state_is_float32(dtype):
    """REC-1, REC-2, R7"""
    cache = RecurrentCache(SHAPE)
    state = cache.get(1, dtype)
    assert (state.conv.dtype, state.delta.dtype) == (dtype, torch.float32)
    assert (state.conv.shape, state.delta.shape) == ((1, 3, 10), (1, 2, 3, 4))
    assert not state.conv.any()
    assert not state.delta.any()
    put(cache, 2, 5, dtype=dtype)
    assert cache.snapshot(0).state.conv.dtype == dtype


def test_other_rows_or_another_dtype_are_refused():
    """REC-2"""
    cache = RecurrentCache(SHAPE)
    with pytest.raises(AssertionError):
        cache.get(2, torch.float32)
    cache.get(1, torch.bfloat16)
    with pytest.raises(AssertionError):
        cache.get(1, torch.float32)
    with pytest.raises(AssertionError):
        cache.get(2, torch.bfloat16)


def test_sequences_that_advance_in_step_share_a_cache():
    """REC-2, REC-4: and only those."""
    shape = replace(SHAPE, batch=2)
    cache = RecurrentCache(shape)
    assert cache.get(2, torch.float32).delta.shape == (2, 2, 3, 4)
    with pytest.raises(AssertionError, match="advance in step"):
        cache.put(RecurrentUpdate(state_of(1, shape), (3, 2)))
    assert cache.offset == 0
    cache.put(RecurrentUpdate(state_of(1, shape), (3, 3)))
    assert cache.offset == 3
    assert cache.get(2, torch.float32).delta[1].eq(1).all()


@pytest.mark.parametrize("brought", [0, 1, 3])
def test_as_many_states_as_splits_or_an_error(brought):
    """REC-4: and the write that was refused can be made again."""
    cache = RecurrentCache(SHAPE)
    cache.prepare_snapshots([2, 4])
    assert cache.snapshot_splits(4) == [2]
    assert cache.snapshot_splits(5) == [2, 4]
    with pytest.raises(AssertionError):
        put(cache, 5, 9, inner=range(brought))
    assert (cache.offset, held(cache)) == (0, 0)
    put(cache, 5, 9, inner=(7, 8))
    first, second = cache.take_snapshots()
    assert (first.start, first.end, first.state.delta.max()) == (0, 2, 7)
    assert (second.start, second.end, second.state.delta.max()) == (2, 4, 8)


def test_states_without_a_split_are_an_error():
    """REC-4"""
    cache = RecurrentCache(SHAPE)
    with pytest.raises(AssertionError):
        put(cache, 5, 9, inner=(1,))
    assert (cache.offset, held(cache)) == (0, 0)


@pytest.mark.parametrize(
    "end",
    [
        RecurrentState(torch.ones(1, 3, 10), torch.ones(1, 2, 3, 4).bfloat16()),
        RecurrentState(torch.ones(1, 3, 10).bfloat16(), torch.ones(1, 2, 3, 4)),
        RecurrentState(torch.ones(1, 3, 10), torch.ones(1, 2, 4, 3)),
        RecurrentState(torch.ones(1, 3, 1), torch.ones(1, 2, 3, 4)),
    ],
    ids=["delta dtype", "conv dtype", "delta shape", "conv shape"],
)
def test_a_state_of_another_kind_is_refused_whole(end):
    """REC-1: a copy would round it, or spread it, without a word."""
    cache = RecurrentCache(SHAPE)
    put(cache, 2, 5)
    with pytest.raises(AssertionError):
        cache.put(RecurrentUpdate(end, (1,)))
    assert (cache.offset, held(cache)) == (2, 5)


@pytest.mark.parametrize("failing", [2, 1, 0])
def test_a_put_that_has_no_memory_for_a_capture_puts_nothing(failing, monkeypatch):
    """REQ-3, CTR-5: not even the captures before the one that failed."""
    cache = RecurrentCache(SHAPE)
    cache.prepare_snapshots([1, 2, 3])
    copies = iter([recurrent.compact] * failing)
    with monkeypatch.context() as patch:
        patch.setattr(recurrent, "compact", lambda state: next(copies)(state))
        with pytest.raises(StopIteration):
            put(cache, 3, 6, inner=(4, 5))
    assert (cache.offset, held(cache)) == (0, 0)
    put(cache, 3, 9, inner=(7, 8))
    assert [s.state.delta.max() for s in cache.take_snapshots()] == [7, 8, 9]


def test_captures_follow_one_another_whatever_writes_fall_between():
    """PND-4: at offset 2 scheduled {2, 3, 5}, then 2 tokens and 2 more."""
    cache = RecurrentCache(SHAPE)
    put(cache, 2, 1)
    cache.prepare_snapshots([2, 3, 5])
    put(cache, 2, 4, inner=(3,))
    put(cache, 2, 6, inner=(5,))
    taken = cache.take_snapshots()
    assert [(s.start, s.end) for s in taken] == [(2, 2), (2, 3), (3, 5)]
    assert [float(s.state.delta.max()) for s in taken] == [1, 3, 5]


def test_an_offset_due_now_is_captured_before_the_write():
    """PND-8: nothing where there is no state yet."""
    cache = RecurrentCache(SHAPE)
    cache.prepare_snapshots([0])
    put(cache, 2, 1)
    assert cache.take_snapshots() == [None]
    cache.prepare_snapshots([2])
    put(cache, 1, 2)
    [taken] = cache.take_snapshots()
    assert (taken.end, taken.state.delta.max()) == (2, 1)


def test_an_offset_that_a_restore_arrived_at_is_captured_with_the_next_write():
    """PND-3: both ends of a write count."""
    cache, other = RecurrentCache(SHAPE), RecurrentCache(SHAPE)
    put(other, 4, 1)
    cache.get(1, torch.float32)
    cache.prepare_snapshots([4, 6])
    assert cache.restore(other.snapshot(0), 4)
    assert cache.snapshot_splits(2) == []
    put(cache, 2, 3)
    first, second = cache.take_snapshots()
    assert (first.start, first.end, first.state.delta.max()) == (0, 4, 1)
    assert (second.start, second.end, second.state.delta.max()) == (4, 6, 3)


def test_without_tokens_there_is_no_snapshot():
    """REC-6: a state of zeros is none."""
    cache = RecurrentCache(SHAPE)
    assert cache.snapshot(0) is None
    cache.get(1, torch.float32)
    assert cache.snapshot(0) is None
    put(cache, 4, 1)
    taken = cache.snapshot(9)
    assert (taken.start, taken.end) == (4, 4)
    assert cache.snapshot(1).start == 1


def test_a_schedule_is_drained_before_the_next():
    """PND-2, R8: an empty one too."""
    cache = RecurrentCache(SHAPE)
    cache.prepare_snapshots([])
    with pytest.raises(AssertionError):
        cache.prepare_snapshots([1])
    assert cache.take_snapshots() == []
    put(cache, 4, 1)
    for wrong in ([3], [6, 5], [5, 5]):
        with pytest.raises(AssertionError):
            cache.prepare_snapshots(wrong)


def test_a_schedule_that_is_refused_has_taken_no_copy(monkeypatch):
    """CTR-3, PND-2: nobody would close it."""
    cache = RecurrentCache(SHAPE)
    put(cache, 4, 1)
    monkeypatch.setattr(Place, "folded", None)
    with pytest.raises(AssertionError):
        cache.prepare_snapshots([4, 4])
    monkeypatch.undo()
    cache.prepare_snapshots([4, 5])
    with pytest.raises(AssertionError, match="has not been taken"):
        cache.prepare_snapshots([4, 5])
    assert [taken and taken.end for taken in cache.take_snapshots()] == [4, None]


def test_a_copy_that_fails_leaves_no_schedule(monkeypatch):
    """REQ-3"""
    cache = RecurrentCache(SHAPE)
    put(cache, 4, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Place, "folded", lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(MemoryError):
            cache.prepare_snapshots([4, 5])
    cache.prepare_snapshots([])
    assert cache.take_snapshots() == []


def test_a_capture_owns_its_state_and_pins_no_storage_of_the_forward():
    """R5, CNV-3, ACC-3, ACC-4, R16: states that are slices of a scan's are copied out of it."""
    cache = RecurrentCache(SHAPE)
    cache.get(1, torch.float32)
    cache.prepare_snapshots([1, 3])
    rows, steps = torch.rand(1, 300, 10), torch.rand(3, 1, 2, 3, 4)
    alive = [weakref.ref(rows.untyped_storage()), weakref.ref(steps.untyped_storage())]
    inner = RecurrentState(rows[:, 1:4], steps[0])
    end = RecurrentState(rows[:, 3:6], steps[2])
    cache.put(RecurrentUpdate(end, (3,), (inner,)))
    taken = cache.take_snapshots()
    assert torch.equal(taken[0].state.conv, rows[:, 1:4])
    assert torch.equal(taken[1].state.delta, steps[2])
    del rows, steps, inner, end
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
    assert [snapshot.size() for snapshot in taken] == [STATE_BYTES] * 2


def test_inputs_without_an_end_belong_to_a_write_that_has_begun():
    """REC-4: of others' tensors nobody could say how long they stay."""
    cache = RecurrentCache(SHAPE)
    put(cache, 1, 1)
    with pytest.raises(AssertionError, match="begun"):
        cache.put(RecurrentUpdate(None, (5,)))
    assert (cache.offset, held(cache)) == (1, 1)


def test_a_restore_copies_into_the_live_tensors_and_leaves_the_snapshot():
    """REC-7, CTR-6, CTR-8"""
    cache, other = RecurrentCache(SHAPE), RecurrentCache(SHAPE)
    put(cache, 4, 1)
    live, taken, generation = cache.get(1, torch.float32), cache.snapshot(0), cache.generation
    put(cache, 1, 2)
    assert cache.restore(taken, 4)
    assert cache.get(1, torch.float32) is live
    assert cache.generation == generation
    put(cache, 1, 3)
    assert other.restore(taken, 4)
    assert (other.offset, held(other)) == (4, 1)
    put(other, 1, 7)
    assert taken.state.delta.eq(1).all()


def test_a_freed_cache_takes_its_snapshots_back():
    """R11, CTR-8, PND-7: at addresses of their own, which `generation` tells of."""
    cache = RecurrentCache(SHAPE)
    assert cache.generation == 0
    put(cache, 4, 1, dtype=torch.bfloat16)
    first = cache.generation
    assert first > 0
    taken = cache.snapshot(0)
    cache.prepare_snapshots([4, 9])
    gc.collect()
    captured = weakref.ref(cache._schedule._captured[4])
    cache.free()
    gc.collect()
    assert captured() is None
    freed = cache.generation
    assert freed > first
    assert (cache.offset, cache.nbytes()) == (0, 0)
    assert cache.snapshot(0) is None
    cache.prepare_snapshots([])
    assert cache.restore(taken, 4)
    assert cache.generation > freed
    assert held(cache, torch.bfloat16) == 1


def test_bytes_are_those_held():
    """ACC-3: what a driver's layers leave their results in is counted too."""
    cache = RecurrentCache(SHAPE)
    assert cache.nbytes() == 0
    put(cache, 4, 1)
    assert cache.nbytes() == STATE_BYTES
    cache.put(cache.begin_write(2).update.of(0))
    assert cache.nbytes() == 2 * STATE_BYTES
    cache.free()
    assert cache.nbytes() == 0


def test_closing_twice_or_using_what_is_closed_is_an_error():
    """CTR-3, CTR-4"""
    cache = RecurrentCache(SHAPE)
    put(cache, 4, 1)
    taken = cache.snapshot(0)
    taken.close()
    with pytest.raises(AssertionError):
        taken.close()
    with pytest.raises(AssertionError):
        cache.restore(taken, 4)


def test_a_merge_keeps_the_child_and_split_the_whole():
    """REC-8, CTR-4: either may be missing."""
    cache = RecurrentCache(SHAPE)
    put(cache, 4, 1)
    parent, child = cache.snapshot(0), cache.snapshot(0)
    assert cache.merge_frees(parent, child) == STATE_BYTES
    assert cache.merge(parent, child) is child
    with pytest.raises(AssertionError):
        parent.size()
    assert cache.merge_frees(None, child) == 0
    assert cache.merge(None, child) is child
    assert cache.split(child, 2) == (None, child)
    assert cache.merge_frees(child, None) == STATE_BYTES
    assert cache.merge(child, None) is None
    with pytest.raises(AssertionError):
        child.size()
    assert cache.split(None, 2) == (None, None)
