"""What a gated-delta layer writes to its cache: all or nothing, and where a driver wants it."""

from dataclasses import replace

import pytest
import torch

from fixtures.delta_layer import CHANNELS, cache_of, copied, drawn, equal, layer, run, state
from forerun.contract.recurrence import RecurrentInputs, RecurrentUpdate, RecurrentWrite
from forerun.nn import recurrence


@pytest.mark.parametrize("kernel", ["causal_conv", "gated_delta"])
def test_a_forward_that_fails_leaves_the_cache_as_it_was(kernel, monkeypatch):
    """WRT-2, REQ-3"""

    def fails(*_, **__):
        raise torch.OutOfMemoryError("no memory for the rows")

    recur, cache, fresh = layer(), cache_of(), cache_of()
    run(recur, drawn(5), cache)
    run(recur, drawn(5), fresh)
    cache.prepare_snapshots([7, 9])
    with monkeypatch.context() as patch:
        patch.setattr(recurrence, kernel, fails)
        with pytest.raises(torch.OutOfMemoryError):
            run(recur, drawn(4), cache, start=5)
    assert cache.offset == 5
    assert equal(state(cache), state(fresh))
    run(recur, drawn(4), cache, start=5)
    run(recur, drawn(4), fresh, start=5)
    assert equal(state(cache), state(fresh))
    assert [s.end for s in cache.take_snapshots()] == [7, 9]


def driven(cache, index, width):
    """What a driver puts into a batch for the layer at `index`."""
    write = cache.begin_write(width)
    return write, (None,) * index + (write,)


@pytest.mark.parametrize("length", [6, 40])
def test_a_write_begun_by_somebody_else(length):
    """WRT-6, REC-4: the layer fills the tensors it is given; only the driver's `put` writes."""
    recur, cache, fresh = layer(index=2), cache_of(), cache_of()
    for each in (cache, fresh):
        run(recur, drawn(5), each)
        each.prepare_snapshots([6, 8, 5 + length])
    before, given = copied(state(cache)), drawn(length, seed=3)
    write, writes = driven(cache, 2, length)
    outputs = run(recur, given, cache, start=5, writes=writes)
    assert equal(write.before, before)
    cache.put(write.update)
    assert torch.equal(outputs, run(recur, given, fresh, start=5))
    assert (cache.offset, fresh.offset) == (5 + length, 5 + length)
    assert equal(state(cache), state(fresh))
    for taken, want in zip(cache.take_snapshots(), fresh.take_snapshots(), strict=True):
        assert (taken.start, taken.end) == (want.start, want.end)
        assert equal(taken.state, want.state)


def test_a_driver_takes_a_failed_forward_back():
    """WRT-2: by a `put` of no tokens."""
    recur, cache = layer(), cache_of()
    run(recur, drawn(5), cache)
    before = copied(state(cache))
    write, writes = driven(cache, 0, 3)
    with pytest.raises(AssertionError, match="layer 1"):
        run(layer(index=1), drawn(3), cache, start=5, writes=(*writes, None))
    run(recur, drawn(3), cache, start=5, writes=writes)
    cache.put(replace(write.update, lengths=(0,)))
    assert cache.offset == 5
    assert equal(state(cache), before)


def test_the_state_after_may_go_where_the_one_before_was():
    """`RecurrentWrite`: a driver may want a step in place."""
    recur, given, cache = layer(), drawn(3, seed=3), cache_of()
    run(recur, drawn(5), cache)
    live = copied(state(cache))
    write = RecurrentWrite(live, (), RecurrentUpdate(live, (3,)))
    outputs = run(recur, given, cache, start=5, writes=(write,))
    assert torch.equal(outputs, run(recur, given, cache, start=5))
    assert equal(live, state(cache))


@pytest.mark.parametrize("length", [6, 40])
def test_a_driver_may_take_the_inputs_instead_of_states(length):
    """REC-5, WID-4: a cache that replays them captures the same states to the last bit."""
    recur, cache, fresh = layer(), cache_of(), cache_of()
    for each in (cache, fresh):
        run(recur, drawn(5), each)
        each.prepare_snapshots([6, 8])
    inputs = RecurrentInputs(
        torch.empty(1, length, CHANNELS),
        torch.empty(1, length, 2, 5),
        torch.empty(1, length, 6, 7),
        torch.empty(1, length, 6),
        torch.empty(1, length, 6),
    )
    given, splits = drawn(length, seed=3), tuple(cache.snapshot_splits(length))
    end = copied(state(cache))
    update = RecurrentUpdate(end, (length,), inputs=inputs)
    write = RecurrentWrite(copied(state(cache)), splits, update)
    run(recur, given, cache, start=5, writes=(write,))
    cache.put(update)
    run(recur, given, fresh, start=5)
    assert equal(state(cache), state(fresh))
    for taken, want in zip(cache.take_snapshots(), fresh.take_snapshots(), strict=True):
        assert equal(taken.state, want.state)
