"""The gated delta rule: its reference against the definition in float64 and Hugging Face's, the
chunked scan against the reference.
"""

import math
from dataclasses import replace

import pytest
import torch
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from fixtures.kernels_parity import assert_within
from forerun.kernels.gated_delta.chunked import WIDEST_STEPPED, gated_delta
from forerun.kernels.gated_delta.reference import DeltaRows, stepwise

# (batch, length, key heads, value heads, key dim, value dim)
SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (1, 5, 1, 2, 3, 7),
    (2, 16, 2, 2, 8, 8),
    (1, 17, 2, 6, 5, 9),
    (2, 64, 1, 1, 16, 8),
    (1, 65, 2, 4, 16, 16),
    (2, 200, 3, 3, 33, 17),
]
DTYPES = [torch.float32, torch.bfloat16]
ROUNDED = {torch.float32: 2**-24, torch.bfloat16: 2**-9}


def rows_of(shape, dtype=torch.float32, *, seed=0, decays=(0.8, 1.0), magnitude=1.0):
    """Keys of unit length, as the rule wants them, and queries no longer than that."""
    batch, length, key_heads, value_heads, key_dim, value_dim = shape
    seeded = torch.Generator().manual_seed(seed)

    def normal(*of):
        return torch.randn(batch, length, *of, generator=seeded)

    def unit(rows):
        return rows / rows.norm(dim=-1, keepdim=True)

    low, high = decays
    rows = DeltaRows(
        unit(normal(key_heads, key_dim)).to(dtype),
        unit(normal(key_heads, key_dim)).to(dtype),
        (normal(value_heads, value_dim) * magnitude).to(dtype),
        torch.rand(batch, length, value_heads, generator=seeded) * (high - low) + low,
        torch.rand(batch, length, value_heads, generator=seeded),
    )
    state = torch.randn(batch, value_heads, value_dim, key_dim, generator=seeded) * magnitude
    return rows, state


def definition(rows, state):
    """One sequence and one head at a time, in float64: outputs, and the state after each step."""
    batch, length, value_heads, _ = rows.values.shape
    shared = value_heads // rows.keys.shape[2]
    outputs = torch.zeros(rows.values.shape, dtype=torch.float64)
    states = torch.zeros(length, *state.shape, dtype=torch.float64)
    for sequence in range(batch):
        for head in range(value_heads):
            held = state[sequence, head].double()
            for step in range(length):
                at = (sequence, step, head // shared)
                key, query = rows.keys[at].double(), rows.queries[at].double()
                value = rows.values[sequence, step, head].double()
                held = rows.decay[sequence, step, head].double() * held
                error = rows.beta[sequence, step, head].double() * (value - held @ key)
                held = held + torch.outer(error, key)
                outputs[sequence, step, head] = held @ query
                states[step, sequence, head] = held
    return outputs, states


def bound(rows, largest):
    """A step is a contraction (unit keys, beta and decay within [0, 1]), so that the roundings of
    its few sums over Dk, and over a chunk, add up over the steps and do not grow.
    """
    steps, key_dim = rows.length, rows.keys.shape[-1]
    return 4 * (steps + key_dim + 64) * 2**-24 * largest


def assert_meets(scan, rows, state, boundaries=()):
    outputs, states = definition(rows, state)
    largest = max(float(states.abs().max()), float(state.abs().max()))
    slack = bound(rows, largest)
    rounding = 2 * ROUNDED[rows.values.dtype]
    assert scan.outputs.dtype == rows.values.dtype
    assert_within(scan.outputs, outputs, outputs.abs() * rounding + slack)
    assert len(scan.states) == len(boundaries) + 1
    for at, found in zip((*boundaries, rows.length), scan.states, strict=True):
        assert found.dtype == torch.float32
        want = states[at - 1] if at else state.double()
        assert_within(found, want, torch.full_like(want, slack))


@pytest.mark.parametrize("scan", [stepwise, gated_delta])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_scan_is_the_definition(shape, dtype, scan):
    """CNV-8, KER-1, KER-2, KER-4"""
    rows, state = rows_of(shape, dtype)
    assert_meets(scan(rows, state), rows, state)


@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
def test_a_chunk_may_have_any_length(chunk):
    """KER-4"""
    rows, state = rows_of((1, 50, 1, 2, 6, 5))
    assert_meets(gated_delta(rows, state, chunk=chunk), rows, state)


@pytest.mark.parametrize("boundaries", [(1,), (20, 21, 64), (7, 80, 99), tuple(range(1, 100))])
def test_states_at_the_boundaries_and_the_end(boundaries):
    """CNV-6, CNV-7: of a wide scan, within tolerance."""
    rows, state = rows_of((2, 100, 2, 4, 8, 6))
    assert_meets(gated_delta(rows, state, boundaries=boundaries), rows, state, boundaries)


def part(rows, start, end):
    return DeltaRows(
        rows.queries[:, start:end],
        rows.keys[:, start:end],
        rows.values[:, start:end],
        rows.decay[:, start:end],
        rows.beta[:, start:end],
    )


@pytest.mark.parametrize("cuts", [(), (1,), (8,), (3, 4, 11), tuple(range(1, 16))])
@pytest.mark.parametrize("shape", [(1, 16, 2, 4, 7, 5), (2, 16, 1, 3, 16, 33)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_short_scan_has_the_bits_of_its_single_steps(shape, dtype, cuts):
    """CNV-6, CNV-8, KER-4, WID-1, WID-4, 06 KER-2: in calls of any widths, boundary states too."""
    rows, state = rows_of(shape, dtype)
    singles, states, held = [], [], state
    for step in range(16):
        single = gated_delta(part(rows, step, step + 1), held)
        held = single.states[-1]
        singles.append(single.outputs)
        states.append(held)
    whole = gated_delta(rows, state, boundaries=cuts)
    assert torch.equal(whole.outputs, torch.cat(singles, dim=1))
    for at, found in zip((*cuts, 16), whole.states, strict=True):
        assert torch.equal(found, states[at - 1])
    held = state
    for start, end in zip((0, *cuts), (*cuts, 16), strict=True):
        segment = gated_delta(part(rows, start, end), held)
        held = segment.states[-1]
        assert torch.equal(segment.outputs, whole.outputs[:, start:end])
    assert torch.equal(held, whole.states[-1])


def test_a_sequence_has_the_same_bits_alone():
    """WID-1: whichever sequences stand beside it."""
    rows, state = rows_of((3, 9, 2, 4, 7, 5))
    together = gated_delta(rows, state)
    for row in range(3):
        alone = DeltaRows(
            rows.queries[row : row + 1],
            rows.keys[row : row + 1],
            rows.values[row : row + 1],
            rows.decay[row : row + 1],
            rows.beta[row : row + 1],
        )
        found = gated_delta(alone, state[row : row + 1])
        assert torch.equal(found.outputs[0], together.outputs[row])
        assert torch.equal(found.states[-1][0], together.states[-1][row])


@pytest.mark.parametrize("threads", [1, 2])
def test_the_bits_do_not_depend_on_the_threads(threads):
    """WID-3"""
    rows, state = rows_of((1, 4, 4, 8, 97, 65))  # more than one thread takes by itself
    before, want = torch.get_num_threads(), gated_delta(rows, state)
    torch.set_num_threads(threads)
    try:
        found = gated_delta(rows, state)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found.outputs, want.outputs)
    assert torch.equal(found.states[-1], want.states[-1])


@pytest.mark.parametrize("length", [12, 100])
def test_padding_changes_nothing(length):
    """CNV-5, CNV-2: a padded sequence stands still, whatever lies in the columns behind it."""
    rows, state = rows_of((3, length, 2, 4, 6, 5))
    real = [0, 5, length]
    for row, end in enumerate(real):
        for filled in (rows.queries, rows.keys, rows.values, rows.decay, rows.beta):
            filled[row, end:] = float("nan")
    lengths, boundaries = torch.tensor(real), (3, 9)
    found = gated_delta(rows, state, boundaries=boundaries, lengths=lengths)
    assert not found.outputs[0].any()
    for row, end in enumerate(real):
        alone = DeltaRows(
            rows.queries[row : row + 1, :end],
            rows.keys[row : row + 1, :end],
            rows.values[row : row + 1, :end],
            rows.decay[row : row + 1, :end],
            rows.beta[row : row + 1, :end],
        )
        outputs, states = definition(alone, state[row : row + 1])
        slack = bound(rows, 1 + float(states.abs().max()) if end else 1.0)
        assert_within(found.outputs[row, :end], outputs[0], torch.full_like(outputs[0], slack))
        for at, made in zip((*boundaries, length), found.states, strict=True):
            at = min(at, end)
            want = states[at - 1, 0] if at else state[row].double()
            assert_within(made[row], want, torch.full_like(want, slack))
    assert torch.equal(found.states[-1][0], state[0])


@pytest.mark.parametrize("scan", [stepwise, gated_delta])
def test_no_rows(scan):
    rows, state = rows_of((1, 0, 1, 2, 4, 4))
    found = scan(rows, state)
    assert found.outputs.shape == (1, 0, 2, 4)
    assert torch.equal(found.states[0], state)
    assert found.states[0].data_ptr() != state.data_ptr()


@pytest.mark.parametrize("length", [1, 16, 17, 130])
def test_the_state_given_is_not_written_to(length):
    """REC: only `put` writes the live state."""
    rows, state = rows_of((1, length, 1, 2, 8, 8))
    kept = state.clone()
    found = gated_delta(rows, state, boundaries=tuple(range(1, min(length, 4))))
    assert torch.equal(state, kept)
    pointers = {made.untyped_storage().data_ptr() for made in (*found.states, state)}
    assert len(pointers) == len(found.states) + 1


def test_states_own_no_more_than_themselves():
    """CNV-3, ACC-3, R5"""
    for length in (1, 16, 100):
        rows, state = rows_of((1, length, 1, 2, 8, 8))
        found = gated_delta(rows, state, boundaries=(5,) if length > 5 else ())
        assert all(made.untyped_storage().nbytes() == made.nbytes for made in found.states)


@pytest.mark.parametrize("length", [10, 90])
def test_strided_rows(length):
    rows, state = rows_of((1, length, 2, 4, 12, 10))
    strided = DeltaRows(
        rows.queries[..., ::2],
        rows.keys.flip(-1)[..., ::2] * 1.2,
        rows.values[..., 1::3],
        rows.decay.mT.contiguous().mT,
        rows.beta,
    )
    state = state[:, :, ::3, ::2][:, :, :3]
    assert_meets(gated_delta(strided, state), strided, state)


@pytest.mark.parametrize("length", [10, 130])
@pytest.mark.parametrize("magnitude", [1e-20, 1e10])
def test_extreme_magnitudes(magnitude, length):
    rows, state = rows_of((1, length, 2, 2, 8, 8), magnitude=magnitude)
    assert_meets(gated_delta(rows, state), rows, state)


@pytest.mark.parametrize("decay", [0.0, 1e-30, 1e-6])
@pytest.mark.parametrize("length", [10, 130])
def test_a_state_forgotten_at_once_costs_what_follows_no_digits(length, decay):
    """KER-4: a chunk's ratios of decays never pass through a quotient or a logarithm."""
    rows, state = rows_of((1, length, 1, 2, 8, 8), decays=(0.999, 1.0))
    rows.decay[:, 3::40] = decay
    assert_meets(gated_delta(rows, state), rows, state)


@pytest.mark.parametrize("decay", [0.0, 1.0])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_the_ends_of_decay_and_beta(decay, beta):
    rows, state = rows_of((1, 70, 1, 2, 8, 8))
    rows = replace(
        rows,
        decay=torch.full_like(rows.decay, decay),
        beta=torch.full_like(rows.beta, beta),
    )
    assert_meets(gated_delta(rows, state), rows, state)


@pytest.mark.parametrize("length", [7, 16, 150])
@pytest.mark.parametrize("key_heads", [2, 4])
def test_it_is_what_hugging_face_computes(key_heads, length):
    """QWN-9: their state is [Dk, Dv], their decay a logarithm, their queries unscaled."""
    rows, state = rows_of((1, length, key_heads, 4, 16, 8))
    theirs = (
        qwen3_next.torch_recurrent_gated_delta_rule,
        qwen3_next.torch_chunk_gated_delta_rule,
    )
    found = gated_delta(rows, state)
    shared = 4 // key_heads
    for rule in theirs:
        outputs, end = rule(
            (rows.queries * math.sqrt(16)).repeat_interleave(shared, dim=2),
            rows.keys.repeat_interleave(shared, dim=2),
            rows.values,
            g=rows.decay.log(),
            beta=rows.beta,
            initial_state=state.mT,
            output_final_state=True,
        )
        torch.testing.assert_close(found.outputs, outputs, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.states[-1], end.mT, rtol=1e-4, atol=1e-5)


def test_a_prefill_is_solved_in_chunks(monkeypatch):
    """KER-2: the path that the tests above compare is really taken from 17 steps on."""
    monkeypatch.setattr("forerun.kernels.gated_delta.chunked.stepwise", None)
    gated_delta(*rows_of((1, WIDEST_STEPPED + 1, 1, 1, 4, 4)))
    with pytest.raises(TypeError):
        gated_delta(*rows_of((1, WIDEST_STEPPED, 1, 1, 4, 4)))
