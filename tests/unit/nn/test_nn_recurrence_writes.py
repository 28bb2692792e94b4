"""What a gated-delta layer writes to its cache: all or nothing, and where a driver wants it."""

import pytest
import torch

from fixtures.delta_layer import cache_of, copied, cut, drawn, equal, layer, run, state
from forerun.cache.recurrent import RecurrentCache
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
    cache.put(write.update.of(0))
    assert cache.offset == 5
    assert equal(state(cache), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("keep", range(1, 7))
@pytest.mark.parametrize("driver", [False, True])
def test_a_round_that_is_cut_short_has_the_bits_of_what_was_kept(driver, keep, dtype):
    """REC-5, WID-4: rounds one behind the other, then a step: their inputs are folded in later."""
    recur, cache, plain = layer(), cache_of(dtype), cache_of(dtype)
    given, at = drawn(40, dtype), 4
    run(recur, cut(given, 0, at), cache)
    run(recur, cut(given, 0, at), plain)

    def forward(width):
        if not driver:
            return run(recur, cut(given, at, at + width), cache, start=at)
        write, writes = driven(cache, 0, width)
        outputs = run(recur, cut(given, at, at + width), cache, start=at, writes=writes)
        cache.put(write.update)
        return outputs

    for width in (6, 6, 6, 1):
        kept = min(keep, width)
        cache.prepare_snapshots(range(at + 1, at + width))
        outputs = forward(width)
        taken = cache.take_snapshots()
        if kept < width:
            assert cache.restore(taken[kept - 1], at + kept)
        for step in range(kept):
            alone = run(recur, cut(given, at + step, at + step + 1), plain, start=at + step)
            assert torch.equal(alone[0, 0], outputs[0, step])
        at += kept
        found = cache.snapshot(0)
        assert found is not None
        assert equal(found.state, state(plain, dtype))


def test_a_driver_on_another_device_takes_states():
    """REC-5, CTR-8: the states at the splits, at one address each, are those that replay gives."""
    recur, given = layer(), drawn(20)
    replaying, copying = cache_of(), RecurrentCache(recur.state_shape(), replay=False)
    for cache in (replaying, copying):
        run(recur, cut(given, 0, 5), cache)
        cache.prepare_snapshots([6, 8, 11])
        write, writes = driven(cache, 0, 6)
        assert (write.update.inputs is None) == (write.update.end is not None)
        assert (write.update.inputs is None) == (cache is copying)
        run(recur, cut(given, 5, 11), cache, start=5, writes=writes)
        cache.put(write.update)
    pairs = zip(replaying.take_snapshots(), copying.take_snapshots(), strict=True)
    for lazy, owned in pairs:
        assert (lazy.size(), lazy.lazy_bytes()) == (0, owned.size())
        assert equal(lazy.state, owned.state)
    assert equal(state(replaying), state(copying))


def test_a_forward_that_fails_behind_a_round_leaves_what_was_pending(monkeypatch):
    """WRT-2, REC-5: it has been folded, and nobody takes that into account."""
    recur, cache, fresh = layer(), cache_of(), cache_of()
    given = drawn(12)
    for each in (cache, fresh):
        run(recur, cut(given, 0, 3), each)
        each.prepare_snapshots([4, 5])
        run(recur, cut(given, 3, 6), each)
        kept = each.take_snapshots()
        assert each.restore(kept[1], 5)
    cache.prepare_snapshots([6])

    def fails(*_, **__):
        raise torch.OutOfMemoryError("no memory for the rows")

    with monkeypatch.context() as patch:
        patch.setattr(recurrence, "causal_conv", fails)
        with pytest.raises(torch.OutOfMemoryError):
            run(recur, cut(given, 5, 7), cache, start=5)
    assert cache.offset == 5
    run(recur, cut(given, 5, 7), cache, start=5)
    run(recur, cut(given, 5, 7), fresh, start=5)
    assert equal(state(cache), state(fresh))


def test_rows_of_another_dtype_or_number_are_refused():
    """REC-2: and nothing is written."""
    recur, cache = layer(), cache_of()
    run(recur, drawn(3), cache)
    for wrong in (drawn(2, torch.bfloat16), drawn(2, batch=2)):
        with pytest.raises(AssertionError):
            run(recur, wrong, cache, start=3)
        assert cache.offset == 3
    run(recur, drawn(2), cache, start=3)
    assert cache.offset == 5
