"""Mixtures of experts in C++ against float64, and against themselves at every width.

06 KER-1, KER-3: router, choice, activation and weighted sum in one call with the products; on every
instruction set of this machine, bit for bit alike.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import native_experts
from fixtures.native_experts import (
    SHAPES,
    Mixture,
    Shape,
    choices,
    mixture_reference,
    random_mixture,
    run_mixture,
)
from fixtures.native_kernels import ISAS, Floats, team


def _stream(length: int, hidden: int, seed: int = 9) -> Floats:
    return np.random.default_rng(seed).standard_normal((length, hidden)).astype(np.float32)


def _furthest(one: Floats, other: Floats) -> float:
    return float(np.abs(one.astype(np.float64) - other).max())


def _check_meaning(mixture: Mixture, x: Floats, got: Floats) -> None:
    """As far from float64 as rounded activations are, twice: codes at ties may fall either way.

    And as float32 sums are: some tens of roundings of numbers no larger than the largest made.
    """
    exact = mixture_reference(mixture, x, lambda rows: rows.astype(np.float64))
    made = np.abs(exact - x).max()
    allowed = 2 * _furthest(mixture_reference(mixture, x), exact) + 1e-5 * made + 1e-6
    assert _furthest(got, exact) <= allowed


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SHAPES)
def test_a_mixture_is_its_meaning_in_float64(name: str, isa: str) -> None:
    """06 KER-1, LIN-8, Q3M-2, QWN-12: router, softmax over all, the best, perhaps a shared one."""
    mixture = random_mixture(SHAPES[name])
    x = _stream(40, mixture.shape.hidden)
    _check_meaning(mixture, x, run_mixture(team(2, isa), mixture, x, 40))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SHAPES)
def test_a_row_is_the_same_at_every_width_and_number_of_threads(name: str, isa: str) -> None:
    """06 WID-1, WID-2, WID-3, WID-7: one by one, or together."""
    mixture = random_mixture(SHAPES[name])
    x = _stream(40, mixture.shape.hidden, seed=10)
    whole = run_mixture(team(1, "scalar"), mixture, x, 40)
    for width in range(1, 17):
        if isa == "scalar" and width not in (1, 4, 16):
            continue  # slow, and of the same source
        got = run_mixture(team(1 + width % 3, isa), mixture, x, width)
        assert got.tobytes() == whole.tobytes(), width


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["one expert", "qwen3.5", "more than lanes"])
def test_threads_and_chunks_do_not_change_a_wide_forward(name: str, isa: str) -> None:
    """06 WID-3, LIN-9: nor does it matter how many rows share an expert, over 64 and over 256."""
    mixture = random_mixture(SHAPES[name])
    x = _stream(300, mixture.shape.hidden)
    whole = run_mixture(team(1, isa), mixture, x, 300)
    _check_meaning(mixture, x, whole)
    for threads, width in ((2, 300), (3, 258), (3, 65), (2, 100)):
        if isa == "scalar" and width < 258:
            continue
        got = run_mixture(team(threads, isa), mixture, x, width)
        assert got.tobytes() == whole.tobytes(), (threads, width)


def test_sixteen_threads_change_no_bit() -> None:
    """06 WID-3: more of them than there are cores, or blocks of an expert."""
    mixture = random_mixture(SHAPES["qwen3.5"])
    x = _stream(4, mixture.shape.hidden)
    whole = run_mixture(team(1), mixture, x, 4)
    for width in (1, 4):
        assert run_mixture(team(16), mixture, x, width).tobytes() == whole.tobytes(), width


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SHAPES)
def test_sorting_changes_nothing(name: str, isa: str) -> None:
    """06 LIN-9, WID-1, WID-2: rows in another order have the same results in that order."""
    mixture = random_mixture(SHAPES[name])
    x = _stream(23, mixture.shape.hidden)
    together = run_mixture(team(2, isa), mixture, x, 23)
    order = np.random.default_rng(1).permutation(23)
    assert run_mixture(team(3, isa), mixture, x[order], 23).tobytes() == together[order].tobytes()
    same = np.repeat(x[:1], 23, 0)  # all of them take the same experts
    assert run_mixture(team(2, isa), mixture, same, 23).tobytes() == together[:1].tobytes() * 23


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["qwen3", "more than lanes"])
def test_of_equal_logits_the_first_experts_are_taken(name: str, isa: str) -> None:
    """06 Q3M-2: all equal, and equal in pairs that stand far apart."""
    mixture = random_mixture(SHAPES[name])
    x = _stream(9, mixture.shape.hidden)
    count, router = mixture.shape.count, mixture.router.copy()
    for index in (np.zeros(count, int), np.arange(count) % ((count + 1) // 2)):
        mixture.router[:] = router[index]
        _check_meaning(mixture, x, run_mixture(team(2, isa), mixture, x, 9))


@pytest.mark.parametrize("renormalised", [False, True])
@pytest.mark.parametrize("isa", ISAS)
def test_huge_logits_are_no_trouble(isa: str, renormalised: bool) -> None:
    """06 Q3M-2: one expert has all of the chance, the others have none."""
    mixture = random_mixture(replace(SHAPES["qwen3"], renormalised=renormalised))
    mixture.router[:] *= np.float32(1e7)
    x = _stream(40, mixture.shape.hidden)
    assert choices(mixture, x)[1][:, 1:].max() < 1e-12
    _check_meaning(mixture, x, run_mixture(team(2, isa), mixture, x, 40))


@pytest.mark.parametrize("isa", ISAS)
def test_experts_that_nobody_takes_are_not_read(isa: str) -> None:
    """06 LIN-8: their scales are no numbers."""
    mixture = random_mixture(SHAPES["more than lanes"])
    x = _stream(3, mixture.shape.hidden)
    want = run_mixture(team(2, isa), mixture, x, 3)
    idle = set(range(mixture.shape.count)) - set(choices(mixture, x)[0].flatten().tolist())
    assert idle
    for expert in idle:
        for part in mixture.mlps[expert]:
            part.bytes[:] = 0xFF
    assert run_mixture(team(2, isa), mixture, x, 3).tobytes() == want.tobytes()


@pytest.mark.parametrize("isa", ISAS)
def test_no_rows(isa: str) -> None:
    mixture = random_mixture(SHAPES["qwen3"])
    x = _stream(0, mixture.shape.hidden)
    assert run_mixture(team(2, isa), mixture, x, 1).shape == x.shape


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_without_a_number_spoils_no_other(name: str, isa: str, bad: float) -> None:
    """06 WID-1, WID-2."""
    mixture = random_mixture(SHAPES[name])
    x = _stream(12, mixture.shape.hidden)
    clean = run_mixture(team(1, isa), mixture, x, 12)
    x[7, 3] = bad
    for width in (12, 1):
        got = run_mixture(team(2, isa), mixture, x, width)
        others = np.arange(12) != 7
        assert got[others].tobytes() == clean[others].tobytes()
        assert np.isnan(got[7]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_chance_that_is_no_number_shows(isa: str, bad: float) -> None:
    """06 KER-1: as in a softmax; a chance of nothing is a number."""
    mixture = random_mixture(SHAPES["qwen3"])
    x = np.abs(_stream(12, mixture.shape.hidden))  # so that the logit is `bad`
    mixture.router[4] = -1e38
    want = run_mixture(team(2, isa), mixture, x, 12)
    mixture.router[4] = bad
    got = run_mixture(team(2, isa), mixture, x, 12)
    if bad < 0:
        assert got.tobytes() == want.tobytes()
    else:
        assert np.isnan(got).all()


@pytest.mark.parametrize("isa", ISAS)
def test_nothing_of_an_earlier_call_is_left(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """06 KER-1: whatever the lent memory holds."""
    mixture = random_mixture(SHAPES["qwen3.5"])
    x = _stream(20, mixture.shape.hidden)
    want = run_mixture(team(2, isa), mixture, x, 20)
    for byte in (0, 1, 0x7F):
        monkeypatch.setattr(
            native_experts, "memory", lambda size, byte=byte: np.full(size, byte, np.uint8)
        )
        assert run_mixture(team(2, isa), mixture, x, 20).tobytes() == want.tobytes()


@settings(max_examples=20)
@given(
    count=st.integers(1, 40),
    top=st.integers(1, 10),
    hidden=st.sampled_from([32, 64, 160]),
    inner=st.sampled_from([32, 96]),
    shared=st.sampled_from([0, 32, 64]),
    length=st.integers(1, 40),
    width=st.integers(1, 20),
    threads=st.integers(1, 5),
    kind=st.tuples(*[st.booleans()] * 6),
    exponent=st.integers(-3, 3),
)
def test_any_mixture_is_itself_at_every_width(
    count: int,
    top: int,
    hidden: int,
    inner: int,
    shared: int,
    length: int,
    width: int,
    threads: int,
    kind: tuple[bool, ...],
    exponent: int,
) -> None:
    """06 WID-1, WID-2, WID-3, KER-1: on every instruction set but the slow one, bit for bit."""
    wide, biased, gelu, renormalised, gated, normed_output = kind
    shape = Shape(
        count,
        min(top, count),
        hidden,
        inner,
        bits=8 if wide else 4,
        wide=wide,
        biased=biased,
        gelu=gelu,
        renormalised=renormalised,
        shared=shared,
        shared_gate=gated and shared > 0,
        output_norm=normed_output,
    )
    mixture, x = random_mixture(shape), _stream(length, hidden) * np.float32(10.0**exponent)
    whole = run_mixture(team(1), mixture, x, length)
    for isa in set(ISAS) - {"scalar"}:
        assert run_mixture(team(threads, isa), mixture, x, width).tobytes() == whole.tobytes(), isa
