"""A gated-delta layer's recurrence: against its definition, and however a sequence is cut up."""

from itertools import pairwise

import pytest
import torch
from torch.nn import functional
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from fixtures.delta_layer import (
    CHANNELS,
    HEADS,
    TAPS,
    cache_of,
    copied,
    cut,
    drawn,
    equal,
    layer,
    run,
    state,
)
from forerun.nn import recurrence
from forerun.nn.recurrence import DeltaHeads, GatedDelta


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


@pytest.mark.parametrize(("length", "reported"), [(10, []), (200, [2, 3, 7])])
def test_one_conv_and_one_scan_whatever_is_captured(length, reported, monkeypatch):
    """R6, CNV-1, CNV-6, REC-3, REC-5: the splits are reported by the same call, those of a round by
    none.
    """
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
    assert calls == [("causal_conv", reported), ("gated_delta", reported)]
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
