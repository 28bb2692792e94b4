"""Mixtures of experts as operands of a layer, in C++ against the reference in plain torch.

06 KER-1. Tolerance as in `test_attention_layer_reference`: twice what rounded activations make.
"""

import gc
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fixtures.kernels_parity import random_affine
from fixtures.layer_operands import (
    HIDDEN,
    empty_rows,
    family_layer,
    rounded,
    rounded_product,
    turns_of,
)
from fixtures.native_kernels import native_library
from forerun.kernels.decoder_layer.native import AttentionLayer, NativeLayers, why_not
from forerun.kernels.decoder_layer.reference import Place, Product, attention_layer, exact_product
from forerun.kernels.dequantise.reference import dequantise
from forerun.kernels.experts.native import NativeExperts
from forerun.kernels.layer_operands import ExpertOperands, LayerOperands, MlpOperands
from forerun.kernels.operands import AffineWeight, BiasedLinear, BlockScaledWeight, Quantised
from forerun.quant.codec import quantise
from forerun.quant.formats import QuantFormat

COUNT, INNER, SHARED, LENGTH = 6, 64, 32, 30
FAMILIES = ["llama", "qwen3", "gemma3"]  # biases; none; a norm of what is added, and GELU


def _linear(rows: int, columns: int, seed: int, kind: str) -> BiasedLinear:
    if kind == "mxfp4":
        values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) / 8
        return BiasedLinear(_data(values, QuantFormat("mxfp4", 32)), None)
    bits = int(kind.removeprefix("int"))
    return BiasedLinear(
        random_affine(rows, columns, bits=bits, group=32, seed=seed, magnitude=0.3), None
    )


def _data(values: Tensor, form: QuantFormat) -> Quantised:
    return quantise(values, form).data


def _mlp(inner: int, seed: int, kind: str, activation: str) -> MlpOperands:
    sizes = ((inner, HIDDEN), (inner, HIDDEN), (HIDDEN, inner))
    gate, up, down = (_linear(*size, seed + place, kind) for place, size in enumerate(sizes))
    return MlpOperands(gate, up, down, activation)


def mixture(family: str, *, kind: str = "int4", shared: bool = False) -> LayerOperands:
    """A family's layer with experts for an MLP."""
    layer = family_layer(family)
    assert isinstance(layer.feed_forward, MlpOperands)
    activation = layer.feed_forward.activation
    seeded = torch.Generator().manual_seed(4)
    experts = ExpertOperands(
        router=torch.randn(COUNT, HIDDEN, generator=seeded) / 4,
        top=2,
        renormalised=family == "qwen3",
        experts=[_mlp(INNER, 10 * seed, kind, activation) for seed in range(COUNT)],
        shared=_mlp(SHARED, 900, "int8", activation) if shared else None,
        shared_gate=torch.randn(HIDDEN, generator=seeded) / 8 if shared else None,
    )
    return replace(layer, feed_forward=experts)


def experts_of(layer: LayerOperands) -> ExpertOperands:
    assert isinstance(layer.feed_forward, ExpertOperands)
    return layer.feed_forward


def tokens() -> Tensor:
    return torch.randn(LENGTH, HIDDEN, generator=torch.Generator().manual_seed(2))


def by_reference(layer: LayerOperands, product: Product = exact_product) -> Tensor:
    stream, at = tokens(), Place(LENGTH, 0, LENGTH, 0)
    rows = empty_rows(layer, LENGTH, torch.float32)
    attention_layer(layer, stream, turns_of(layer, 0, LENGTH), rows, at, product=product)
    return stream


def run(kernels: NativeLayers, layer: LayerOperands) -> Tensor:
    stream, rows = tokens(), empty_rows(layer, LENGTH, torch.float32)
    cosines, sines = turns_of(layer, 0, LENGTH)
    kernels.enter(stream, LENGTH, [(cosines.data_ptr(), sines.data_ptr())])
    (first,) = kernels.layers
    assert isinstance(first, AttentionLayer)
    first.place(*rows, first_row=0, live=LENGTH, first_position=0)
    kernels.run(0, 1)
    return stream


def in_cpp(layer: LayerOperands) -> Tensor:
    native_library()
    assert why_not(layer, torch.float32) is None
    return run(NativeLayers([layer], torch.float32, 2), layer)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["int4", "int8", "mxfp4"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernel_is_the_reference(family: str, kind: str, shared: bool) -> None:
    """06 KER-1, KER-3, LIN-8, QWN-12, Q3M-2: over a whole layer."""
    layer = mixture(family, kind=kind, shared=shared)
    want = by_reference(layer)
    coarse = float((by_reference(layer, _coarse_product) - want).abs().max())
    error = float((in_cpp(layer) - want).abs().max())
    assert error <= 2 * coarse + 1e-5 * float(want.abs().max())


def _coarse_product(part: BiasedLinear, x: Tensor) -> Tensor:
    """Also of weights that have no affine form in the fixture."""
    if isinstance(part.weight, AffineWeight):
        return rounded_product(part, x)
    return torch.nn.functional.linear(rounded(x), dequantise(part.weight, torch.float32))


def _rows(part: BiasedLinear, first: int, end: int) -> BiasedLinear:
    weight = part.weight
    assert isinstance(weight, AffineWeight)
    assert weight.bias is not None
    here = slice(first, end)
    words = weight.words.view(torch.int32)[here].view(torch.uint32)
    return BiasedLinear(
        AffineWeight(words, weight.scale[here], weight.bias[here], weight.bits), None
    )


def _stacked(parts: Sequence[BiasedLinear]) -> BiasedLinear:
    weights = [part.weight for part in parts]
    words, scales, biases = [], [], []
    for weight in weights:
        assert isinstance(weight, AffineWeight)
        assert weight.bias is not None
        words.append(weight.words.view(torch.int32))
        scales.append(weight.scale)
        biases.append(weight.bias)
    joined = torch.cat(words).view(torch.uint32)
    return BiasedLinear(AffineWeight(joined, torch.cat(scales), torch.cat(biases), 4), None)


def test_parts_of_one_stack_and_parts_of_their_own_give_equal_bits() -> None:
    """06 LIN-10, T4: gate and up of all experts in one stack, or each shipped apart."""
    layer = mixture("qwen3")
    apart = experts_of(layer)
    stack = _stacked([part for mlp in apart.experts for part in (mlp.gate, mlp.up)])
    together = [
        replace(
            mlp,
            gate=_rows(stack, 2 * place * INNER, (2 * place + 1) * INNER),
            up=_rows(stack, (2 * place + 1) * INNER, (2 * place + 2) * INNER),
        )
        for place, mlp in enumerate(apart.experts)
    ]
    joined = replace(layer, feed_forward=replace(apart, experts=together))
    assert torch.equal(in_cpp(joined), in_cpp(layer))


def test_what_experts_were_made_of_may_go() -> None:
    """06 LIN-12, 05 LOD-4: the kernel keeps what it reads, and counts it."""
    native_library()
    layer = mixture("qwen3", shared=True)
    want = in_cpp(layer)
    kernels = NativeLayers([layer], torch.float32, 2)
    part = experts_of(layer)
    held = kernels.layers[0].nbytes
    packed = sum(
        linear.weight.words.nbytes
        for mlp in part.experts
        for linear in (mlp.gate, mlp.up, mlp.down)
        if isinstance(linear.weight, AffineWeight)
    )
    assert held > packed + part.router.nbytes
    bare = replace(layer, feed_forward=replace(part, router=part.router.clone()))
    for mlp in part.experts:
        for linear in (mlp.gate, mlp.up, mlp.down):
            assert isinstance(linear.weight, AffineWeight)
            linear.weight.words.fill_(0)
            linear.weight.scale.fill_(torch.nan)
    del layer, part
    gc.collect()
    assert torch.equal(run(kernels, bare), want)


def test_what_experts_the_kernel_cannot_serve_is_said() -> None:
    """06 KER-1: in words for the log."""
    native_library()
    layer = mixture("qwen3", shared=True)
    part = experts_of(layer)
    assert part.shared is not None

    def said(**other: object) -> str | None:
        changed = replace(part, **other)  # type: ignore[arg-type]
        return why_not(replace(layer, feed_forward=changed), torch.float32)

    gelu = replace(part.shared, activation="gelu_pytorch_tanh")
    assert said(shared=gelu) == "experts have the activations gelu_pytorch_tanh and silu"
    relu = [replace(mlp, activation="relu") for mlp in part.experts]
    assert said(experts=relu, shared=None) == "the activation is relu"
    odd = [*part.experts[:-1], _mlp(32, 7, "int4", "silu")]
    assert said(experts=odd) == "experts are 32 and 64 wide"
    values = torch.randn(INNER, HIDDEN)
    fp8 = BiasedLinear(_data(values, QuantFormat("mxfp8", 32)), None)
    assert isinstance(fp8.weight, BlockScaledWeight)
    refused = [*part.experts[:-1], replace(part.experts[-1], gate=fp8)]
    assert said(experts=refused) == "there is no integer form of mxfp8"
    assert said() is None


def test_a_mixture_of_other_experts_is_refused_before_its_memory_is_read() -> None:
    """06 KER-1: a broken invariant, with the reason."""
    part = experts_of(mixture("qwen3"))
    odd = replace(part, experts=[*part.experts[:-1], _mlp(32, 7, "int4", "silu")])
    with pytest.raises(AssertionError, match="32 and 64 wide"):
        NativeExperts(native_library(), odd)
