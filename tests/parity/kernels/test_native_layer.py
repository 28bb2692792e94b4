"""A whole decoder layer in C++ against float64, and against itself at every width.

06 KER-1: on every instruction set of this machine, bit for bit alike. 06 WID-7 for this kernel.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import native_layers
from fixtures.native_kernels import ISAS, Floats, from_bfloat16, team, to_bfloat16
from fixtures.native_layers import (
    SHAPES,
    Shape,
    empty_rows,
    layer_reference,
    random_layer,
    run_layer,
    run_step,
)


def _stream(length: int, seed: int = 9) -> Floats:
    return np.random.default_rng(seed).standard_normal((length, 96)).astype(np.float32)


@pytest.mark.parametrize("bfloat16", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_a_layer_is_its_meaning_in_float64(name: str, bfloat16: bool) -> None:
    """06 KER-1."""
    layer, x = random_layer(SHAPES[name]), _stream(300)
    y, *_ = run_layer(team(2), layer, x, 300, bfloat16=bfloat16)
    want = layer_reference(layer, x, bfloat16=bfloat16)
    error = np.abs(y - want) / np.abs(want).max()
    # codes and bfloat16 rows at ties may fall to the other side
    assert error.max() < (1e-3 if bfloat16 else 2e-4)
    assert error.mean() < 5e-5


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SHAPES)
def test_a_row_is_the_same_at_every_width_and_number_of_threads(name: str, isa: str) -> None:
    """06 WID-1, WID-2, WID-3, WID-7: rows that passed one by one, or together, and what is kept."""
    layer, x = random_layer(SHAPES[name]), _stream(270, seed=10)
    whole = run_layer(team(1, "scalar"), layer, x, 270)
    for width in range(1, 17):
        threads = 1 + width % 3
        if isa == "scalar" and width not in (1, 4, 16):
            continue  # slow, and of the same source
        for got, want in zip(run_layer(team(threads, isa), layer, x, width), whole, strict=True):
            assert got.tobytes() == want.tobytes(), (threads, width)


@pytest.mark.parametrize("isa", ISAS)
def test_threads_do_not_change_a_wide_forward(isa: str) -> None:
    """06 WID-3: nor does its width, over 16."""
    layer, x = random_layer(SHAPES["llama"]), _stream(300)
    whole, *_ = run_layer(team(1, isa), layer, x, 300, bfloat16=False)
    for threads, width in ((2, 300), (3, 300), (2, 260), (3, 17)):
        got, *_ = run_layer(team(threads, isa), layer, x, width, bfloat16=False)
        assert got.tobytes() == whole.tobytes(), (threads, width)


def test_far_history() -> None:
    """06 WID-2: blocks count from position 0; row 0 of the buffer stands elsewhere, rows are dead.

    Dead rows and rows beyond the live ones hold NaN, and are never read.
    """
    layer, random = random_layer(SHAPES["llama"]), np.random.default_rng(4)
    shape, before = layer.shape, 9008
    size = (shape.kv_heads, before - 13, shape.head_dim)
    history = [to_bfloat16(random.standard_normal(size)) for _ in range(2)]
    x = _stream(6)
    outputs = []
    for threads, width in ((1, 6), (2, 6), (3, 1), (2, 4)):
        rows = tuple(empty_rows(shape, before + 9, bfloat16=True) for _ in range(2))
        for row, known in zip(rows, history, strict=True):
            row[:, 13:before] = known
        out = [x[first : first + width].copy() for first in range(0, 6, width)]
        first_row = before
        for part in out:
            run_step(team(threads), layer, part, rows, first_row, at=64)
            first_row += len(part)
        assert np.isnan(from_bfloat16(rows[0][:, first_row:])).all()
        outputs.append(np.concatenate(out))
    assert not np.isnan(outputs[0]).any()
    for other in outputs[1:]:
        assert other.tobytes() == outputs[0].tobytes()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_without_a_number_spoils_none_before_it(name: str, isa: str, bad: float) -> None:
    """06 WID-1, WID-2: a token that overflows changes no token that stands before it."""
    layer, x = random_layer(SHAPES[name]), _stream(12)
    clean, *_ = run_layer(team(1, isa), layer, x, 12)
    x[7, 3] = bad
    together, *_ = run_layer(team(2, isa), layer, x, 12)
    apart, *_ = run_layer(team(1, isa), layer, x, 1)
    assert together[:7].tobytes() == clean[:7].tobytes()
    assert np.array_equal(np.isnan(together), np.isnan(apart))
    assert np.isnan(together[7]).all()


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_that_sees_nothing_has_no_numbers(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """06 KER-1: where all scores are minus infinity; and nothing of an earlier call."""
    layer = random_layer(Shape(2, 2, 32, biased=True))
    for name, value in (("queries", -1e25), ("keys", 1e25)):
        bias = layer.weights[name].bias
        assert bias is not None
        bias[:] = value
    outputs = []
    for left_over in (0, 1):  # bytes of the memory that is lent to the kernel
        monkeypatch.setattr(
            native_layers, "memory", lambda size, byte=left_over: np.full(size, byte, np.uint8)
        )
        outputs.append(run_layer(team(2, isa), layer, _stream(4), 4, bfloat16=False)[0])
    assert np.isnan(outputs[0]).all(1).any()
    assert outputs[0].tobytes() == outputs[1].tobytes()


@settings(max_examples=20)
@given(
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    head_dim=st.sampled_from([32, 64, 96, 128]),
    window=st.sampled_from([0, 1, 2, 31, 127, 128, 129]),
    length=st.sampled_from([1, 2, 17, 127, 128, 129, 140]),
    width=st.integers(1, 20),
    threads=st.integers(1, 5),
    kind=st.tuples(*[st.booleans()] * 6),
    rotary_dim=st.sampled_from([0, 2, 14, 32]),
    exponent=st.integers(-3, 3),
)
def test_any_layer_is_itself_at_every_width(
    kv_heads: int,
    group: int,
    head_dim: int,
    window: int,
    length: int,
    width: int,
    threads: int,
    kind: tuple[bool, ...],
    rotary_dim: int,
    exponent: int,
) -> None:
    """06 WID-1, WID-2, WID-3, KER-1: on every instruction set but the slow one, bit for bit."""
    biased, head_norms, extra_norms, tokens, gated, bfloat16 = kind
    shape = Shape(
        kv_heads * group,
        kv_heads,
        head_dim,
        biased=biased,
        head_norms=head_norms,
        extra_norms=extra_norms,
        tokens=tokens,
        gated=gated,
        rotary_dim=rotary_dim,
        window=window,
    )
    layer, x = random_layer(shape), _stream(length) * np.float32(10.0**exponent)
    whole = run_layer(team(1), layer, x, length, bfloat16=bfloat16)
    for isa in set(ISAS) - {"scalar"}:
        found = run_layer(team(threads, isa), layer, x, width, bfloat16=bfloat16)
        for got, want in zip(found, whole, strict=True):
            assert got.tobytes() == want.tobytes(), isa


def test_sixteen_threads_change_no_bit() -> None:
    """06 WID-3: more of them than there are cores, or items to share."""
    layer, x = random_layer(SHAPES["gemma3"]), _stream(40)
    whole = run_layer(team(1), layer, x, 40)
    for width in (1, 40):
        found = run_layer(team(16), layer, x, width)
        for got, want in zip(found, whole, strict=True):
            assert got.tobytes() == want.tobytes(), width
