"""The C++ linear against float64 over the same weights and rounded activations.

06 KER-1: on every instruction set of this machine, bit for bit alike. 06 WID-7 for this kernel.
06 LIN-3: groups of 32, 64 and 128 of int4 and int8; 06 LIN-1: biases.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.native_kernels import ISAS, linear, memory, packed, random_weight, rounded, team


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("rows", "columns"), [(1, 128), (15, 256), (40, 384), (96, 640)])
def test_a_product_is_that_of_the_rounded_activations(
    isa: str, bits: int, group: int, rows: int, columns: int
) -> None:
    """06 LIN-1, LIN-3, KER-1."""
    random = np.random.default_rng(rows)
    shape = {"group": group, "bits": bits, "biased": rows == 15, "wide": rows == 40}
    weight = random_weight(random, rows, columns, **shape)
    x = random.standard_normal((19, columns)).astype(np.float32)
    y = linear(team(2, isa), [weight], x)
    want = weight.applied(rounded(x))
    # A code falls to the other side where x / scale is within float32's rounding of a tie.
    assert np.abs(y - want).max() <= 2e-5 * np.abs(want).max()
    assert np.array_equal(y, linear(team(1, "scalar"), [weight], x))


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_come_back_out_of_the_layout(bits: int) -> None:
    """06 LIN-5: an embedding gathers rows of the packed weight."""
    weight = random_weight(np.random.default_rng(bits), 35, 192, group=64, bits=bits, wide=True)
    rows = np.array([34, 0, 16, 16, 15])
    assert np.allclose(weight.unpacked(rows), weight.values[rows], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_is_the_same_at_every_width_and_number_of_threads(isa: str) -> None:
    """06 WID-1, WID-2, WID-3, WID-7: beside any rows, of parts of different kinds.

    06 LIN-6: parts joined by rows are what they are apart.
    """
    random = np.random.default_rng(5)
    parts = [
        random_weight(random, 40, 192, group=64),
        random_weight(random, 33, 192, bits=8, biased=True),
        random_weight(random, 7, 192, wide=True),
    ]
    scale = np.exp(random.standard_normal((600, 1)))
    x = (random.standard_normal((600, 192)) * scale).astype(np.float32)
    whole = linear(team(1, isa), parts, x)
    apart = [linear(team(1, isa), [part], x) for part in parts]
    assert np.array_equal(whole, np.concatenate(apart, 1))
    for threads in (1, 2, 3):
        for width in (*range(1, 17), 31, 257, 600):
            for place in {0, width // 2, width - 1}:
                first = int(random.integers(0, 600 - width + 1))
                y = linear(team(threads, isa), parts, x[first : first + width])
                assert np.array_equal(y[place], whole[first + place]), (threads, width, place)


@settings(max_examples=60)
@given(
    rows=st.integers(1, 70),
    groups=st.integers(1, 5),
    group=st.sampled_from([32, 64, 96, 128]),
    bits=st.sampled_from([4, 8]),
    width=st.integers(1, 20),
    threads=st.integers(1, 3),
    kind=st.tuples(st.booleans(), st.booleans()),
    exponent=st.integers(-30, 30),
    seed=st.integers(0, 9),
)
def test_all_instruction_sets_agree_on_any_shape(
    rows: int,
    groups: int,
    group: int,
    bits: int,
    width: int,
    threads: int,
    kind: tuple[bool, bool],
    exponent: int,
    seed: int,
) -> None:
    """06 KER-1, WID-3: bit for bit, and near float64, from memory that is not aligned."""
    random = np.random.default_rng(seed)
    wide, biased = kind
    shape = {"group": group, "bits": bits, "wide": wide, "biased": biased}
    weight = random_weight(random, rows, groups * group, **shape)
    x = memory(width * groups * group * 4).view(np.float32).reshape(width, -1)
    x[:] = random.standard_normal(x.shape) * 10.0**exponent
    whole = linear(team(1, "scalar"), [weight], x)
    # codes beside a tie, and float32 sums: relative to the terms, as a result may cancel
    bound = 1e-4 * np.abs(rounded(x)) @ (np.abs(weight.values) + 1e-3).T + 1e-6 * biased
    assert (np.abs(whole - weight.applied(rounded(x))) <= bound).all()
    for isa in ISAS:
        assert np.array_equal(linear(team(threads, isa), [weight], x), whole)


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_activations(isa: str) -> None:
    """06 KER-1: zeros give zeros, finite numbers no NaN; a NaN or infinity spoils its row alone."""
    weight = random_weight(np.random.default_rng(1), 20, 64)
    one = team(1, isa)
    assert (linear(one, [weight], np.zeros((2, 64), np.float32)) == 0).all()
    for big in (1e30, 1e-38, 1e-42, 1e36):
        assert not np.isnan(linear(one, [weight], np.full((1, 64), big, np.float32))).any()
    for bad in (np.nan, np.inf, -np.inf):
        x = np.ones((2, 64), np.float32)
        x[0, 33] = bad
        y = linear(one, [weight], x)
        assert np.isnan(y[0]).all()
        assert not np.isnan(y[1]).any()


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_weights(isa: str) -> None:
    """06 KER-1: every code at its end, terms at the ends of half precision: the sums are exact."""
    for bits in (4, 8):
        codes = np.full((17, 1024), 2**bits - 1, np.uint8)
        terms = [np.full((17, 8), value, np.float32) for value in (65504.0, -65504.0)]
        weight = packed(codes, *terms, bits=bits)
        y = linear(team(2, isa), [weight], np.full((3, 1024), 127.0, np.float32))
        want = weight.applied(np.full((3, 1024), 127.0))
        assert np.allclose(y, want, rtol=1e-6)


def test_sixteen_threads_change_no_bit() -> None:
    """06 WID-3: most of them have no block of rows to work on."""
    random = np.random.default_rng(8)
    weight = random_weight(random, 70, 192, bits=8)
    x = random.standard_normal((20, 192)).astype(np.float32)
    whole = linear(team(1), [weight], x)
    for width in (1, 20):
        assert np.array_equal(linear(team(16), [weight], x[:width]), whole[:width])
