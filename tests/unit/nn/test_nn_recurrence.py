"""A gated-delta layer's recurrence: against its definition, and however a sequence is cut up."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.nn import functional
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from forerun.cache.recurrent import RecurrentCache, StateShape
from forerun.contract.batch import Batch
from forerun.contract.recurrence import (
    RecurrentInputs,
    RecurrentState,
    RecurrentUpdate,
    RecurrentWrite,
)
from forerun.nn import recurrence
from forerun.nn.recurrence import DeltaHeads, GatedDelta

CPU = torch.device("cpu")
HEADS = DeltaHeads(key_heads=2, value_heads=6, key_dim=5, value_dim=7)
CHANNELS = 2 * 2 * 5 + 6 * 7
TAPS = 4


def layer(*, heads=HEADS, bias=True, index=0):
    seeded = torch.Generator().manual_seed(1)
    channels = sum(heads.widths)
    weight = torch.randn(channels, TAPS, generator=seeded)
    return GatedDelta(
        index, weight, torch.randn(channels, generator=seeded) if bias else None, heads
    )


def cache_of(dtype=torch.float32, *, heads=HEADS, batch=1):
    shape = StateShape(
        TAPS - 1,
        sum(heads.widths),
        heads.value_heads,
        heads.value_dim,
        heads.key_dim,
        CPU,
        batch,
    )
    cache = RecurrentCache(shape)
    cache.get(batch, dtype)
    return cache


def drawn(length, dtype=torch.float32, *, heads=HEADS, batch=1, seed=0):
    """Rows, decays and betas of a sequence."""
    seeded = torch.Generator().manual_seed(seed)
    rows = torch.randn(batch, length, sum(heads.widths), generator=seeded).to(dtype)
    decay = 0.9 + 0.1 * torch.rand(batch, length, heads.value_heads, generator=seeded)
    return rows, decay, torch.rand(batch, length, heads.value_heads, generator=seeded)


def cut(given, start, end):
    return tuple(part[:, start:end].clone() for part in given)


def batch_of(given, start=0, lengths=None, **others):
    rows, width = given[0].shape[:2]
    lengths = lengths or (width,) * rows
    return Batch(
        input_ids=torch.zeros(rows, width, dtype=torch.int64),
        starts=(start,) * rows,
        lengths=lengths,
        start_offsets=torch.full((rows,), start),
        valid_lengths=torch.tensor(lengths),
        **others,
    )


def run(recur, given, cache, *, start=0, lengths=None, **others):
    return recur(*given, batch_of(given, start, lengths, **others), cache=cache)


def state(cache, dtype=torch.float32, rows=1):
    return cache.get(rows, dtype)


def equal(a, b):
    return torch.equal(a.conv, b.conv) and torch.equal(a.delta, b.delta)


def copied(held):
    return RecurrentState(held.conv.clone(), held.delta.clone())


def definition(recur, given):
    """The layer in float64, a step at a time: outputs [L, Hv, Dv] and the last delta state."""
    rows, decay, beta = (part[0].double() for part in given)
    heads, taps = recur.heads, recur._taps
    padded = functional.pad(rows, (0, 0, TAPS - 1, 0))
    conv = functional.conv1d(
        padded.T[None],
        taps.weight.double()[:, None],
        None if taps.bias is None else taps.bias.double(),
        groups=rows.shape[1],
    )[0].T
    active = conv * torch.sigmoid(conv)
    if rows.dtype != given[0].dtype:
        active = active.to(given[0].dtype).double()  # the conv's results are activations
    queries, keys, values = active.split(heads.widths, dim=1)
    shared = heads.value_heads // heads.key_heads
    held = torch.zeros(heads.value_heads, heads.value_dim, heads.key_dim, dtype=torch.float64)
    outputs = []
    for step in range(rows.shape[0]):
        read = []
        for head in range(heads.value_heads):
            key = keys[step].view(heads.key_heads, -1)[head // shared]
            query = queries[step].view(heads.key_heads, -1)[head // shared]
            key = key / torch.sqrt(key @ key + 1e-6)
            query = query / torch.sqrt(query @ query + 1e-6) / heads.key_dim**0.5
            value = values[step].view(heads.value_heads, -1)[head]
            held[head] *= decay[step, head]
            held[head] += torch.outer(beta[step, head] * (value - held[head] @ key), key)
            read.append(held[head] @ query)
        outputs.append(torch.stack(read))
    return torch.stack(outputs), held


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("length", [1, 16, 17, 90])
def test_it_is_the_definition(length, bias):
    """QWN-8, QWN-9, CNV-4, 06 CON-9: the epsilon is added to the sum of squares."""
    recur, given = layer(bias=bias), drawn(length)
    given[0][:, length // 2] *= 1e-3  # so little that the epsilon counts
    outputs, end = definition(recur, given)
    cache = cache_of()
    for found in (run(recur, given, None), run(recur, given, cache)):
        torch.testing.assert_close(found[0], outputs.float(), rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(state(cache).delta[0], end.float(), rtol=1e-4, atol=2e-5)


def test_it_is_hugging_faces():
    """QWN-9: conv, norms and scan of a prompt, the scan theirs."""
    recur, given = layer(), drawn(80)
    rows, decay, beta = given
    taps, heads = recur._taps, recur.heads
    padded = functional.pad(rows, (0, 0, TAPS - 1, 0)).mT
    conv = functional.conv1d(padded, taps.weight[:, None], taps.bias, groups=CHANNELS).mT
    queries, keys, values = functional.silu(conv).split(heads.widths, dim=-1)
    want, _ = qwen3_next.torch_chunk_gated_delta_rule(
        queries.reshape(1, 80, 2, 5).repeat_interleave(3, dim=2),
        keys.reshape(1, 80, 2, 5).repeat_interleave(3, dim=2),
        values.reshape(1, 80, 6, 7),
        g=decay.log(),
        beta=beta,
        use_qk_l2norm_in_kernel=True,
    )
    torch.testing.assert_close(run(recur, given, None), want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("cuts", [(1,), (16, 30), (17, 18, 40), tuple(range(1, 60))])
def test_a_sequence_in_chunks_is_the_sequence(cuts):
    """CNV-1, WID-5: from the state that the cache kept."""
    recur, given, cache = layer(), drawn(60), cache_of()
    outputs = [
        run(recur, cut(given, start, end), cache, start=start)
        for start, end in pairwise((0, *cuts, 60))
    ]
    assert cache.offset == 60
    torch.testing.assert_close(
        torch.cat(outputs, dim=1), run(recur, given, None), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", range(2, 17))
def test_a_short_forward_has_the_bits_of_single_steps(width, dtype):
    """WID-1, WID-4, CNV-6, CNV-8, 06 KER-2, KER-4: at odd sizes, behind a prompt, captures too."""
    recur, prompt, given = layer(), drawn(20, dtype), drawn(width, dtype, seed=2)
    single, wide = cache_of(dtype), cache_of(dtype)
    run(recur, prompt, single)
    run(recur, prompt, wide)
    wide.prepare_snapshots(range(21, 21 + width))
    outputs = run(recur, given, wide, start=20)
    for step, taken in enumerate(wide.take_snapshots()):
        alone = run(recur, cut(given, step, step + 1), single, start=20 + step)
        assert torch.equal(alone[0, 0], outputs[0, step])
        assert equal(taken.state, state(single, dtype))
    assert equal(state(wide, dtype), state(single, dtype))


@pytest.mark.parametrize("length", [10, 200])
def test_one_conv_and_one_scan_whatever_is_captured(length, monkeypatch):
    """R6, CNV-1, CNV-6, REC-3: the splits are reported by the same call."""
    calls = []

    def counted(name):
        kernel = getattr(recurrence, name)

        def count(*args, **kwargs):
            calls.append((name, list(kwargs["boundaries"])))
            return kernel(*args, **kwargs)

        monkeypatch.setattr(recurrence, name, count)

    counted("causal_conv")
    counted("gated_delta")
    recur, cache = layer(), cache_of()
    cache.prepare_snapshots([2, 3, 7, length, length + 1])
    run(recur, drawn(length), cache)
    assert calls == [("causal_conv", [2, 3, 7]), ("gated_delta", [2, 3, 7])]
    assert [s is None for s in cache.take_snapshots()] == [False] * 4 + [True]


@pytest.mark.parametrize("length", [12, 150])
def test_a_capture_is_the_state_at_its_offset(length):
    """REC-4, REC-5, CNV-2, CNV-7: what a forward up to there would have left."""
    recur, given, cache = layer(), drawn(length), cache_of()
    offsets = [1, 2, 5, length - 1, length]
    cache.prepare_snapshots(offsets)
    run(recur, given, cache)
    for offset, taken in zip(offsets, cache.take_snapshots(), strict=True):
        fresh = cache_of()
        run(recur, cut(given, 0, offset), fresh)
        torch.testing.assert_close(taken.state.delta, state(fresh).delta, rtol=1e-5, atol=1e-5)
        assert torch.equal(taken.state.conv, state(fresh).conv)
        assert fresh.restore(taken, offset)
        rest = cut(given, offset, length)
        if rest[0].shape[1]:
            run(recur, rest, fresh, start=offset)
            assert fresh.offset == length
            torch.testing.assert_close(state(fresh).delta, state(cache).delta, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [11, 40])
def test_padding_is_not_counted_and_reaches_nothing(length):
    """REC-4, CNV-5: the offset grows by the real tokens; splits lie within them."""
    recur, given, cache, fresh = layer(), drawn(length), cache_of(), cache_of()
    real = length - 4
    padded = cut(given, 0, length)
    for part in padded:
        part[:, real:] = float("nan")
    cache.prepare_snapshots([3, real, real + 1])
    outputs = run(recur, padded, cache, lengths=(real,))
    assert cache.offset == real
    want = run(recur, cut(given, 0, real), fresh)
    torch.testing.assert_close(outputs[:, :real], want, rtol=1e-5, atol=1e-5)
    assert not outputs[:, real:].any()
    torch.testing.assert_close(state(cache).delta, state(fresh).delta, rtol=1e-5, atol=1e-5)
    assert torch.equal(state(cache).conv, state(fresh).conv)
    assert [s is None for s in cache.take_snapshots()] == [False, False, True]


def test_a_row_depends_on_no_other():
    """CNV-5, WID-1, 06 CON-9: rows of several lengths, without a cache."""
    recur, given = layer(), drawn(5, batch=3)
    outputs = run(recur, given, None, lengths=(5, 4, 1))
    for row, length in enumerate((5, 4, 1)):
        alone = tuple(part[row : row + 1, :length] for part in given)
        assert torch.equal(outputs[row, :length], run(recur, alone, None)[0])


def test_rows_of_one_cache_advance_in_step():
    recur, given, cache = layer(), drawn(4, batch=2), cache_of(batch=2)
    with pytest.raises(AssertionError, match="advance in step"):
        run(recur, given, cache, lengths=(4, 3))
    run(recur, given, cache)
    assert cache.offset == 4
    alone = cache_of()
    run(recur, tuple(part[1:] for part in given), alone)
    assert torch.equal(state(cache, rows=2).delta[1:], state(alone).delta)


def test_no_tokens_change_nothing():
    """Batch: a draft may only take in conditioning."""
    recur, cache = layer(), cache_of()
    run(recur, drawn(5), cache)
    before = copied(state(cache))
    assert run(recur, drawn(0), cache, start=5).shape == (1, 0, 6, 7)
    assert cache.offset == 5
    assert equal(state(cache), before)


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


def test_a_long_sequence_of_bfloat16_activations_does_not_drift():
    """R7, REC-1: 4,000 tokens. A state rounded to bfloat16 is a tenth off at their end, one that is
    rounded between chunks only 0.3 %.
    """
    heads = DeltaHeads(1, 1, 8, 8)
    recur, given = layer(heads=heads), drawn(4000, torch.bfloat16, heads=heads)
    given = (given[0], torch.ones_like(given[1]), given[2] * 0.02)  # forgets slowly
    cache = cache_of(torch.bfloat16, heads=heads)
    for start in range(0, 4000, 400):
        assert run(recur, cut(given, start, start + 400), cache, start=start).dtype is (
            torch.bfloat16
        )
    _, end = definition(recur, given)
    found = state(cache, torch.bfloat16).delta[0]
    # leaves room for a few conv results at a rounding border, each a 2**-8 of one token's part
    assert (found - end).abs().max() <= 1e-4 * end.abs().max()


def test_bytes_held():
    assert layer().nbytes == 4 * CHANNELS * (TAPS + 1)
    assert layer(bias=False).nbytes == 4 * CHANNELS * TAPS


def test_a_filter_of_other_channels_is_refused():
    with pytest.raises(AssertionError):
        GatedDelta(0, torch.zeros(CHANNELS + 1, TAPS), None, HEADS)
