"""The causal convolution against the definition in float64 and PyTorch's."""

from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from fixtures.kernels_parity import assert_within
from forerun.kernels.causal_conv.reference import ConvFilter, causal_conv

SHAPES = [(1, 1, 1, 1), (1, 1, 5, 4), (2, 3, 7, 2), (1, 40, 33, 4), (3, 17, 64, 3)]  # B, L, C, K
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
UNIT = {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def drawn(shape, dtype=torch.float32, *, bias=True, silu=False, magnitude=1.0):
    batch, length, channels, taps = shape
    seeded = torch.Generator().manual_seed(0)

    def normal(*of):
        return (torch.randn(of, generator=seeded) * magnitude).to(dtype)

    tail, rows = normal(batch, taps - 1, channels), normal(batch, length, channels)
    weight = torch.randn(channels, taps, generator=seeded).to(dtype)
    return tail, rows, ConvFilter(weight, normal(channels) if bias else None, silu)


def definition(tail, rows, taps):
    """One row at a time: the products of the newest inputs with the filter, oldest tap first."""
    inputs = torch.cat((tail, rows), dim=1).double()
    width = taps.weight.shape[1]
    made = torch.zeros(rows.shape, dtype=torch.float64)
    for row in range(rows.shape[1]):
        for tap in range(width):
            made[:, row] += inputs[:, row + tap] * taps.weight[:, tap].double()
    if taps.bias is not None:
        made = made + taps.bias.double()
    return made / (1 + (-made).exp()) if taps.silu else made


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_definition(shape, silu, bias, dtype):
    """CNV-1, CNV-4: summed and activated in float32, rounded once."""
    tail, rows, taps = drawn(shape, dtype, bias=bias, silu=silu)
    found = causal_conv(tail, rows, taps)
    want = definition(tail, rows, taps)
    summands = definition(
        tail.abs(), rows.abs(), ConvFilter(taps.weight.abs(), None if not bias else taps.bias.abs())
    )
    assert found.rows.dtype == dtype
    # K + 1 sums of float32, times 1.1 at most through the SiLU's slope, then the last rounding
    slack = 2 * (taps.weight.shape[1] + 2) * 2**-24 * summands
    assert_within(found.rows, want, want.abs() * UNIT[dtype] * 1.01 + slack + 2**-25)
    [end] = found.tails
    inputs = torch.cat((tail, rows), dim=1)
    assert torch.equal(end, inputs[:, rows.shape[1] :])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_is_pytorchs(dtype):
    """CNV-4: both routes agree, activation and bias included."""
    tail, rows, taps = drawn((2, 30, 24, 4), dtype, silu=True)
    found = causal_conv(tail, rows, taps).rows
    inputs = torch.cat((tail, rows), dim=1).float().mT
    bias = taps.bias.float()
    want = functional.conv1d(inputs, taps.weight.float()[:, None], bias, groups=24).mT
    torch.testing.assert_close(found, functional.silu(want).to(dtype), rtol=2**-7, atol=1e-5)


@pytest.mark.parametrize("cuts", [(1,), (2, 3), (5, 9, 14), tuple(range(1, 16))])
@pytest.mark.parametrize("channels", [32, 7, 37])
def test_pieces_have_the_bits_of_the_whole(channels, cuts):
    """CNV-1, CNV-2, CNV-8, WID-1: a forward from a boundary's tail goes on as if uninterrupted."""
    tail, rows, taps = drawn((1, 16, channels, 4), silu=True)
    whole = causal_conv(tail, rows, taps, boundaries=cuts)
    assert len(whole.tails) == len(cuts) + 1
    held = tail
    for (start, end), boundary in zip(pairwise((0, *cuts, 16)), whole.tails, strict=True):
        piece = causal_conv(held, rows[:, start:end].clone(), taps)
        held = piece.tails[-1]
        assert torch.equal(piece.rows, whole.rows[:, start:end])
        assert torch.equal(held, boundary)


def test_padding_reaches_nothing():
    """CNV-2, CNV-5: a tail stops at its sequence's own end."""
    tail, rows, taps = drawn((4, 9, 8, 4))
    real = [0, 2, 6, 9]
    padded = rows.clone()
    for row, end in enumerate(real):
        padded[row, end:] = float("nan")
    boundaries = (1, 4, 8)
    found = causal_conv(tail, padded, taps, boundaries=boundaries, lengths=torch.tensor(real))
    assert torch.isfinite(found.rows).all()
    for row, end in enumerate(real):
        own = slice(row, row + 1)
        alone = causal_conv(tail[own], rows[own, :end], taps)
        assert torch.equal(found.rows[row, :end], alone.rows[0])
        inputs = torch.cat((tail, rows), dim=1)[row]
        for at, state in zip((*boundaries, 9), found.tails, strict=True):
            first = min(at, end)
            assert torch.equal(state[row], inputs[first : first + 3])


@pytest.mark.parametrize("lengths", [None, torch.tensor([30])])
def test_tails_own_no_more_than_themselves(lengths):
    """CNV-3, ACC-3, R5: a slice would keep the rows of the whole forward alive."""
    tail, rows, taps = drawn((1, 30, 16, 4))
    found = causal_conv(tail, rows, taps, boundaries=(3, 20), lengths=lengths)
    assert all(state.untyped_storage().nbytes() == 3 * 16 * 4 for state in found.tails)


def test_no_rows():
    tail, rows, taps = drawn((1, 0, 6, 4))
    found = causal_conv(tail, rows, taps)
    assert found.rows.shape == (1, 0, 6)
    assert torch.equal(found.tails[0], tail)


@pytest.mark.parametrize("magnitude", [1e-20, 1e15])
def test_extreme_magnitudes(magnitude):
    tail, rows, taps = drawn((1, 7, 16, 4), silu=True, magnitude=magnitude)
    want = definition(tail, rows, taps)
    bound = want.abs().max() * 2**-20
    assert_within(causal_conv(tail, rows, taps).rows, want, torch.full_like(want, float(bound)))


def test_strided_rows():
    tail, rows, taps = drawn((2, 24, 64, 4))
    taps = ConvFilter(taps.weight[::2], taps.bias[::2], silu=True)
    found = causal_conv(tail[..., ::2], rows[:, ::3, 1::2], taps)
    want = causal_conv(tail[..., ::2].contiguous(), rows[:, ::3, 1::2].contiguous(), taps)
    torch.testing.assert_close(found.rows, want.rows)
    assert torch.equal(found.tails[0], want.tails[0])
