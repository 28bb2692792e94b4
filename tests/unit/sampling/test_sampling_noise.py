"""Position-keyed noise against plain Python integers and against fixed numbers (SED)."""

import pytest
import torch

from forerun.sampling.noise import (
    Purpose,
    bernoulli,
    draw_key,
    gumbel,
    hashes,
    row_uniform,
    seed_key,
    uniform,
)
from unit.sampling.making import DEVICES
from unit.sampling.plain_sampler import plain_bits, plain_gumbel, plain_uniform

# (seed, position, purpose, token), r, 2 * (r >> 33) + 1
VECTORS = [
    ((0, 0, 0, 0), 0x2130748AAAC80268, 556823691),
    ((0, 0, 0, 1), 0x0CC78FB979CE5090, 214405049),
    ((0, 0, 1, 0), 0x97693BFC00425025, 2540256253),
    ((0, 1, 0, 0), 0x68AC638DA2EDDA0C, 1756128141),
    ((1, 0, 0, 0), 0xE28195DDD9EE4956, 3800143325),
    ((42, 17, 2, 49151), 0x35DD0225AC7AD1C2, 903676453),
    ((2**63 - 1, 8191, 3, 7), 0xF0136894083BD477, 4027803797),
    ((2**64 - 1, 2**20, 0, 151935), 0x2DF0384B4A770B23, 770717771),
    ((0, 0, 0, 8997820), 0x00000007B66C0AA6, 7),  # close to 0
    ((0, 0, 0, 7528502), 0xFFFFFFD1F513F1B6, 4294967249),  # rounds up to 1, so it is held below
]
CASES = [
    (seed, position, purpose, token)
    for seed in (0, 1, 42, 2**31, 2**63 - 1, 2**64 - 1)
    for position in (0, 1, 4095, 2**31)
    for purpose in Purpose
    for token in (0, 1, 2, 49151, 151935, 2**31)
]


def keys_and_ids(cases, device):
    keys = [draw_key(seed_key(seed), at, purpose) for seed, at, purpose, _ in cases]
    ids = [[token] for _, _, _, token in cases]
    return torch.tensor(keys, device=device), torch.tensor(ids, device=device)


def unsigned(values):
    return [value % 2**64 for value in values.flatten().tolist()]


@pytest.mark.parametrize("device", DEVICES)
def test_the_bits_of_fixed_vectors_never_change(device):
    """SED-1, SED-6: the same on every device and in every release, or seeds lose their meaning."""
    keys, ids = keys_and_ids([case for case, _, _ in VECTORS], device)
    assert unsigned(hashes(keys, ids)) == [bits for _, bits, _ in VECTORS]
    odd = [round(value * 2**32) for value in uniform(keys, ids).double().flatten().tolist()]
    assert odd == [min(fp32(count), 2**32 - 2**8) for _, _, count in VECTORS]


def fp32(count):
    return int(torch.tensor(float(count), dtype=torch.float32))


@pytest.mark.parametrize("device", DEVICES)
def test_bits_uniforms_and_gumbels_equal_plain_integers(device):
    """SED-6, over seeds, positions, purposes and ids at the ends of their ranges."""
    keys, ids = keys_and_ids(CASES, device)
    want = [plain_bits(*case) for case in CASES]
    assert unsigned(hashes(keys, ids)) == want
    assert uniform(keys, ids).flatten().tolist() == [plain_uniform(bits) for bits in want]
    noise = torch.tensor([plain_gumbel(bits) for bits in want])
    torch.testing.assert_close(gumbel(keys, ids).flatten().cpu(), noise, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_a_tokens_noise_does_not_depend_on_its_place_or_its_company(device):
    """SED-1: bit for bit, whichever columns and rows stand beside it."""
    keys = torch.tensor([draw_key(seed_key(7), at, Purpose.TARGET) for at in range(5)])
    keys, ids = keys.to(device), torch.arange(1000, device=device)
    whole = gumbel(keys, ids)
    shuffled = torch.randperm(1000, device=device)[:37]
    assert torch.equal(gumbel(keys, ids[shuffled].expand(5, -1)), whole[:, shuffled])
    for row in range(5):
        assert torch.equal(gumbel(keys[row : row + 1], ids[3:20]), whole[row : row + 1, 3:20])


def test_the_ends_of_the_uniform_stay_inside_the_interval():
    """SED-1: no infinite noise, and u = 1 never happens."""
    assert plain_uniform(0) == 2**-32
    assert plain_uniform(2**64 - 1) == 1 - 2**-24
    keys = torch.tensor([draw_key(seed_key(0), 0, Purpose.TARGET)])
    ends = torch.tensor([8997820, 7528502])
    assert uniform(keys, ends).max() == 1 - 2**-24
    assert uniform(keys, ends).min() == 7 * 2**-32
    assert gumbel(keys, ends).isfinite().all()


def test_purposes_seeds_positions_and_tokens_have_noise_of_their_own():
    """SED-3: proposals, acceptances, residuals and draws are independent of each other."""
    cases = [
        (seed, position, purpose, token)
        for seed in range(5)
        for position in range(5)
        for purpose in Purpose
        for token in range(5)
    ]
    assert len(set(unsigned(hashes(*keys_and_ids(cases, "cpu"))))) == len(cases)
    assert [int(purpose) for purpose in Purpose] == [0, 1, 2, 3]


def test_purposes_are_not_correlated():
    """SED-3: 20,000 pairs; |r| over 4.5 / sqrt(20,000) happens once in 100,000 seeds."""
    ids = torch.arange(20_000)
    rows = [
        uniform(torch.tensor([draw_key(seed_key(3), 11, purpose)]), ids)[0] for purpose in Purpose
    ]
    correlation = torch.corrcoef(torch.stack(rows)) - torch.eye(4)
    assert correlation.abs().max() < 4.5 / 20_000**0.5


def test_a_bernoulli_is_certain_at_its_ends_and_right_between():
    """DST-9: keyed by seed, position and purpose, and asking twice gives the same answer."""
    keys = torch.tensor([draw_key(seed_key(9), at, Purpose.ACCEPT) for at in range(10_000)])
    assert bernoulli(torch.ones(10_000), keys).all()
    assert not bernoulli(torch.zeros(10_000), keys).any()
    third = bernoulli(torch.full((10_000,), 1 / 3), keys)
    assert torch.equal(third, bernoulli(torch.full((10_000,), 1 / 3), keys))
    assert abs(third.double().mean() - 1 / 3) < 4.5 * (2 / 9 / 10_000) ** 0.5
    assert torch.equal(row_uniform(keys), uniform(keys, torch.zeros(1, dtype=torch.int64))[:, 0])
