"""A gated-delta layer in C++ against its reference in plain torch, and against itself at every cut.

06 KER-1, KER-2, KER-4, WID-1 to WID-4, WID-7, QWN-7 to QWN-10, 01 CNV-1 to CNV-4 for this kernel.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fixtures.delta_operands import (
    SIZES,
    DeltaRunner,
    DeltaSizes,
    DeltaWrite,
    Fed,
    Filled,
    Held,
    delta_operands,
    nan_inputs,
    nan_state,
    random_state,
    stream_of,
)
from fixtures.layer_operands import rounded_product
from fixtures.native_kernels import ISAS, team
from forerun.kernels.decoder_layer.delta_reference import (
    DeltaPass,
    Product,
    delta_layer,
    exact_product,
)
from forerun.kernels.gated_delta.native import NativeFold
from forerun.kernels.layer_operands import DeltaOperands, LayerOperands

LENGTH = 40
SUMS = 1e-5  # of the largest number: float32 sums in another order, over a scan of this length


def mixer_of(layer: LayerOperands) -> DeltaOperands:
    assert isinstance(layer.mixer, DeltaOperands)
    return layer.mixer


def with_mixer(layer: LayerOperands, **changed: Tensor) -> LayerOperands:
    return replace(layer, mixer=replace(mixer_of(layer), **changed))


def by_reference(
    layer: LayerOperands,
    x: Tensor,
    before: Held,
    product: Product = exact_product,
    boundaries: Sequence[int] = (),
) -> tuple[Tensor, DeltaPass]:
    stream = x.clone()
    tail, state = before.conv[0], before.delta[0]
    left = delta_layer(layer, stream, tail, state, boundaries=boundaries, product=product)
    return stream, left


def numbers(stream: Tensor, left: DeltaPass) -> list[Tensor]:
    """All that a pass leaves."""
    steps = left.steps
    fed = [left.raw, *(part[0] for part in (steps.keys, steps.values, steps.decay, steps.beta))]
    return [stream, *left.tails, *left.states, *fed]


def same(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    """To the last bit, NaN included."""
    pairs = zip(ours, theirs, strict=True)
    return all(
        torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))
        for a, b in pairs
    )


def end_of(runner: DeltaRunner, x: Tensor, before: Held, widths: Sequence[int]) -> list[Tensor]:
    """The stream and the end of rows that passed in forwards of these widths."""
    stream, end = runner.pass_through(team(1), x, before, widths)
    return [stream, *end.parts]


@pytest.mark.parametrize("name", SIZES)
def test_the_kernel_is_the_reference(name: str) -> None:
    """KER-1, KER-4, QWN-7, QWN-8, QWN-9, QWN-10, CNV-1, CNV-2, CNV-4, REC-1: the stream, states and
    tails at the splits and at the end, and what the steps were fed.

    The kernel rounds activations of products, so that it may be as far from the reference as the
    reference with rounded activations is: the tolerance is twice that, and what sums are worth.
    """
    sizes, splits = SIZES[name], (1, 2, 9, 39)
    layer, x, before = delta_operands(sizes), stream_of(sizes, LENGTH), random_state(sizes)
    want = numbers(*by_reference(layer, x, before, exact_product, splits))
    coarse = numbers(*by_reference(layer, x, before, rounded_product, splits))
    states = [nan_state(sizes) for _ in range(5)]
    inputs, stream = nan_inputs(sizes, LENGTH), x.clone()
    write = DeltaWrite(before, Filled(states[-1], states[:-1], inputs), splits=splits)
    DeltaRunner(layer).run(team(2), stream, write)
    tails, deltas = [state.conv[0] for state in states], [state.delta[0] for state in states]
    made = [stream, *tails, *deltas, *(part[0] for part in inputs.parts)]
    for ours, theirs, other in zip(made, want, coarse, strict=True):
        bound = 2 * float((other - theirs).abs().max()) + SUMS * float(theirs.abs().max())
        assert float((ours - theirs).abs().max()) <= bound


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SIZES)
def test_a_row_is_the_same_at_every_width_and_number_of_threads(name: str, isa: str) -> None:
    """WID-1, WID-2, WID-3, WID-4, WID-7, KER-2: one by one or together, stream and state."""
    sizes = SIZES[name]
    runner, x, before = (
        DeltaRunner(delta_operands(sizes)),
        stream_of(sizes, 33),
        random_state(sizes),
    )
    want = end_of(runner, x, before, [33])
    for width in range(1, 17):
        if isa == "scalar" and width not in (1, 4, 16):
            continue  # slow, and of the same source
        members = team(1 + width % 3, isa)
        widths = [width] * (33 // width) + [33 % width] * (33 % width > 0)
        stream, end = runner.pass_through(members, x, before, widths)
        assert same([stream, *end.parts], want), (members.threads, width)


@pytest.mark.parametrize("isa", ISAS)
def test_chunks_of_a_wide_forward_change_no_bit(isa: str) -> None:
    """WID-2, WID-3, CNV-6: states at splits on both sides of where a kernel's chunk ends, too."""
    sizes = DeltaSizes(1, 3, 32, 32, hidden=32, inner=32)
    runner, x, before = (
        DeltaRunner(delta_operands(sizes)),
        stream_of(sizes, 600),
        random_state(sizes),
    )
    splits = (1, 255, 256, 257, 511, 512, 513)
    for threads in (1, 3):
        states = [nan_state(sizes) for _ in range(len(splits) + 1)]
        stream = x.clone()
        write = DeltaWrite(before, Filled(states[-1], states[:-1]), splits=splits)
        runner.run(team(threads, isa), stream, write)
        unasked = x.clone()
        runner.run(team(threads, isa), unasked, DeltaWrite(before))
        assert same([unasked], [stream])
        for at, state in zip((*splits, 600), states, strict=True):
            _, *want = end_of(runner, x[:at], before, [at] if at < 256 else [200, at - 200])
            assert same(state.parts, want), (threads, at)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SIZES)
def test_a_round_that_is_folded_in_later_is_that_many_steps(name: str, isa: str) -> None:
    """WID-4, 01 REC-5: what a round keeps and the next one folds in, as the fold alone does."""
    sizes = SIZES[name]
    runner, x, before = (
        DeltaRunner(delta_operands(sizes)),
        stream_of(sizes, 12),
        random_state(sizes),
    )
    members = team(2, isa)
    kept, first = nan_inputs(sizes, 7), x[:7].clone()
    runner.run(members, first, DeltaWrite(before, Filled(inputs=kept)))
    assert same([first], end_of(runner, x[:7], before, [7])[:1])
    raw = torch.cat((before.conv, kept.conv), 1)
    for stand in (1, 3, 7):
        _, tail, state = end_of(runner, x[:stand], before, [stand])
        now = Held(raw[:, stand : stand + sizes.taps - 1].contiguous(), before.delta)
        assert same([now.conv], [tail])
        assert same([NativeFold(2)(before.delta, kept, stand)], [state])
        folded, second, stream = (
            torch.full_like(state, torch.nan),
            nan_inputs(sizes, 5),
            x[7:].clone(),
        )
        round_ = DeltaWrite(now, Filled(inputs=second), kept.first(stand), folded)
        runner.run(members, stream, round_)
        want, *end = end_of(runner, x[7:], Held(tail, state), [5])
        assert same([stream, folded], [want, state])
        last, stream = nan_state(sizes), x[7:].clone()
        runner.run(members, stream, DeltaWrite(now, Filled(last), kept.first(stand)))
        assert same([stream, *last.parts], [want, *end])


def test_what_nobody_asks_for_is_not_written() -> None:
    """01 REC-5: what is read stays as it was, and columns beyond the rows are not touched."""
    sizes = SIZES["odd"]
    runner, x, before = DeltaRunner(delta_operands(sizes)), stream_of(sizes, 5), random_state(sizes)
    kept = nan_inputs(sizes, 16)
    was = before.clone()
    runner.run(team(2), x[:3].clone(), DeltaWrite(before, Filled(inputs=kept.first(3))))
    assert same(before.parts, was.parts)
    for part in kept.parts:
        assert not part[:, :3].isnan().any()
        assert part[:, 3:].isnan().all()
    fed = Fed(*(part.clone() for part in kept.parts))
    pending = kept.first(3)
    runner.run(team(2), x[3:].clone(), DeltaWrite(before, Filled(nan_state(sizes)), pending))
    assert same([*before.parts, *kept.parts], [*was.parts, *fed.parts])


def test_a_run_knows_nothing_of_what_the_one_before_it_was_to_fill() -> None:
    """01 CNV-3, REC-5"""
    sizes = SIZES["odd"]
    runner, x, before = DeltaRunner(delta_operands(sizes)), stream_of(sizes, 5), random_state(sizes)
    want, stream = end_of(DeltaRunner(delta_operands(sizes)), x, before, [5]), x.clone()
    pending, folded, kept = (
        nan_inputs(sizes, 5),
        torch.empty_like(before.delta),
        nan_inputs(sizes, 5),
    )
    runner.run(team(1), x.clone(), DeltaWrite(before, Filled(inputs=pending)))
    filled = Filled(nan_state(sizes), [nan_state(sizes)], kept)
    runner.run(team(1), x.clone(), DeltaWrite(before, filled, pending, folded, splits=[2]))
    (split,), end = filled.splits, filled.end
    assert end is not None
    others = [folded, *pending.parts, *kept.parts, *split.parts, *end.parts]
    for part in others:
        part.fill_(torch.nan)
    last = nan_state(sizes)
    runner.run(team(1), stream, DeltaWrite(before, Filled(last)))
    assert same([stream, *last.parts], want)
    assert all(part.isnan().all() for part in others)
    runner.run(team(1), x.clone(), DeltaWrite(before))
    assert same(last.parts, want[1:])
    fed = Fed(*(torch.ones_like(part) for part in kept.parts))
    runner.run(team(1), x.clone(), DeltaWrite(before, Filled(nan_state(sizes)), fed))
    assert folded.isnan().all()


def test_folding_nothing_copies() -> None:
    """01 REC-5; and of several sequences each by itself."""
    state = torch.randn(2, 2, 16, 16, generator=torch.Generator().manual_seed(1))
    sizes, fold = DeltaSizes(1, 2, 16, 16), NativeFold(2)
    fed = [torch.rand(2, *part.shape[1:]) for part in nan_inputs(sizes, 4).parts]
    inputs = Fed(*fed)
    copied = fold(state, inputs, 0)
    assert torch.equal(copied, state)
    assert copied.data_ptr() != state.data_ptr()
    together = fold(state, inputs, 3)
    for row in range(2):
        alone = Fed(*(part[row : row + 1] for part in fed))
        assert torch.equal(fold(state[row : row + 1], alone, 3)[0], together[row])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("log_decay", "kept"), [(-200.0, 1.0), (80.0, 0.0)])
def test_states_that_forget_nothing_or_everything(isa: str, log_decay: float, kept: float) -> None:
    """QWN-9, KER-4: decays of exactly 1 and of exactly 0."""
    sizes = SIZES["one head"]
    layer = delta_operands(sizes)
    layer = with_mixer(
        layer, log_decay=torch.full((1,), log_decay), step_bias=torch.full((1,), 9.0)
    )
    x, before = stream_of(sizes, 9), random_state(sizes)
    inputs, end, stream = nan_inputs(sizes, 9), nan_state(sizes), x.clone()
    DeltaRunner(layer).run(team(2, isa), stream, DeltaWrite(before, Filled(end, inputs=inputs)))
    assert (inputs.decay == kept).all()
    want, left = by_reference(layer, x, before)
    torch.testing.assert_close(stream, want, rtol=0, atol=2e-4 * float(want.abs().max()))
    torch.testing.assert_close(end.delta[0], left.states[-1], rtol=0, atol=2e-4)


def test_decays_and_corrections_are_those_of_float64() -> None:
    """QWN-9: within a few units in the last place, from the smallest numbers to the largest.

    A sum of float32 before them, and three functions of at most 3 units each.
    """
    sizes = DeltaSizes(1, 16, 16, 16, hidden=32, inner=32)
    alphas = torch.tensor([-300, -88, -40, -20, -9, -3, -1, -1e-3, 0, 1e-3, 1, 3, 9, 40, 88, 300.0])
    layer = with_mixer(
        delta_operands(sizes),
        gates=torch.zeros(32, 32),
        step_bias=alphas,
        log_decay=torch.linspace(-6, 3, 16),
    )
    inputs = nan_inputs(sizes, 1)
    write = DeltaWrite(random_state(sizes), Filled(inputs=inputs))
    DeltaRunner(layer).run(team(1), stream_of(sizes, 1), write)
    softplus = torch.log1p(alphas.double().exp())
    want = torch.where(alphas > 80, alphas.double(), softplus) * mixer_of(layer).log_decay.exp()
    exponent = -torch.log(inputs.decay[0, 0].double())
    held = want < 80  # e^-87 counts as 0
    near = want * 6 * 2**-23 + 2**-23
    assert ((exponent - want).abs()[held] <= near[held]).all()
    assert (inputs.decay[0, 0][~held] < 1e-34).all()
    assert (inputs.beta == 0.5).all()


@pytest.mark.parametrize("magnitude", [1e-20, 1e15])
def test_extreme_magnitudes(magnitude: float) -> None:
    """KER-4: of the state and of the stream, whose norm brings it back."""
    sizes = SIZES["odd"]
    layer, before = delta_operands(sizes), random_state(sizes)
    before = Held(before.conv, before.delta * magnitude)
    x = stream_of(sizes, 9) * magnitude
    want, left = by_reference(layer, x, before)
    coarse, other = by_reference(layer, x, before, rounded_product)
    stream, end = DeltaRunner(layer).pass_through(team(2), x, before, [9])
    pairs = ((stream, want, coarse), (end.delta[0], left.states[-1], other.states[-1]))
    for ours, theirs, rounded in pairs:
        bound = 2 * float((rounded - theirs).abs().max()) + SUMS * float(theirs.abs().max())
        assert float((ours - theirs).abs().max()) <= bound


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_without_a_number_spoils_none_before_it(isa: str, bad: float) -> None:
    """WID-1: and all that come after it, since the state sums up the past."""
    sizes = SIZES["as published, smaller"]
    runner, x, before = (
        DeltaRunner(delta_operands(sizes)),
        stream_of(sizes, 12),
        random_state(sizes),
    )
    clean, *_ = end_of(runner, x, before, [12])
    x[7, 3] = bad
    for widths in ([12], [1] * 12):
        spoiled, end = runner.pass_through(team(2, isa), x, before, widths)
        assert same([spoiled[:7]], [clean[:7]])
        assert spoiled[7:].isnan().all()
        assert end.delta.isnan().all()


@settings(max_examples=15)
@given(
    key_heads=st.integers(1, 3),
    shared=st.integers(1, 3),
    key_dim=st.sampled_from([16, 32, 112, 128, 144, 256]),
    value_dim=st.sampled_from([32, 64, 96]),
    taps=st.integers(2, 8),
    kind=st.tuples(*[st.booleans()] * 3),
    width=st.integers(1, 20),
    length=st.sampled_from([1, 2, 17, 31]),
    threads=st.integers(1, 5),
)
def test_any_layer_is_itself_at_every_width(
    key_heads: int,
    shared: int,
    key_dim: int,
    value_dim: int,
    taps: int,
    kind: tuple[bool, ...],
    width: int,
    length: int,
    threads: int,
) -> None:
    """WID-1, WID-2, WID-3, WID-4, KER-1: on every instruction set but the slow one, bit for bit."""
    apart, biased, outer_norms = kind
    sizes = DeltaSizes(
        key_heads,
        key_heads * shared,
        key_dim,
        value_dim,
        taps=taps,
        apart=apart,
        biased=biased,
        outer_norms=outer_norms,
        hidden=32,
        inner=32,
    )
    runner, before = DeltaRunner(delta_operands(sizes)), random_state(sizes)
    x = stream_of(sizes, length)
    want = end_of(runner, x, before, [length])
    widths = [width] * (length // width) + [length % width] * (length % width > 0)
    for isa in set(ISAS) - {"scalar"}:
        stream, end = runner.pass_through(team(threads, isa), x, before, widths)
        assert same([stream, *end.parts], want), isa
