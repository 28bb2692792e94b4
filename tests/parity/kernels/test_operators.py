"""The C++ kernels as operators: what they compute, and that they can be traced (06 KER-1).

Results are to the bit those of the classes that the engine calls. `opcheck` compares schema, fake
kernel and functional form with what an operator does.
"""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fixtures.kernels_parity import random_affine
from fixtures.layer_operands import HIDDEN, attention_of, empty_rows, family_layer, turns_of
from fixtures.native_kernels import native_library
from forerun.kernels import operators
from forerun.kernels.decoder_layer import reference
from forerun.kernels.decoder_layer.native import NativeLayers
from forerun.kernels.decoder_layer.reference import Place
from forerun.kernels.dequantise.reference import dequantise
from forerun.kernels.layer_operands import LayerOperands, MlpOperands
from forerun.kernels.linear_affine.native import NativeLinear
from forerun.kernels.native import library
from forerun.kernels.native.library import Library
from forerun.kernels.native.packed import repacked
from forerun.kernels.operands import AffineWeight, BiasedLinear, RepackedWeight
from forerun.kernels.output_head.native import NativeHead

AT = Place(width=5, first_row=4, live=7, first_position=20)
THREADS = [0, 2]
FAMILIES = ["llama", "qwen3", "gemma3"]


@cache
def built() -> Library:
    """Also where a test says that there is none."""
    return native_library()


def small() -> RepackedWeight:
    return repacked(built(), random_affine(33, 64, bits=8, group=32))


def inputs(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def repacked_layer(family: str) -> LayerOperands:
    def part(one: BiasedLinear) -> BiasedLinear:
        assert isinstance(one.weight, AffineWeight)
        return BiasedLinear(repacked(built(), one.weight), one.bias)

    layer = family_layer(family)
    mixer, mlp = attention_of(layer), layer.feed_forward
    assert isinstance(mlp, MlpOperands)
    return replace(
        layer,
        mixer=replace(mixer, qkv=[part(one) for one in mixer.qkv]),
        output=part(layer.output),
        feed_forward=replace(mlp, gate=part(mlp.gate), up=part(mlp.up), down=part(mlp.down)),
    )


def layer_inputs(layer: LayerOperands) -> tuple[Tensor, Tensor, Tensor]:
    """A stream, and keys and values whose history is random."""
    rows = empty_rows(layer, 12, torch.bfloat16)
    for part in rows:
        mixer = attention_of(layer)
        part[:, 2:4] = torch.randn(mixer.kv_heads, 2, mixer.head_dim)
    return inputs(AT.width, HIDDEN), *rows


def turns(layer: LayerOperands) -> tuple[Tensor, Tensor]:
    return turns_of(layer, AT.first_position + AT.live - AT.width, AT.width)


def run(layer: LayerOperands, held: tuple[Tensor, ...], threads: int) -> None:
    stream, keys, values = held
    operators.dense_layer(layer, stream, turns(layer), (keys, values), AT, threads=threads)


@pytest.fixture(params=[False, True], ids=["asked for", "not built"])
def no_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of threads with which references serve."""
    built()
    if not request.param:
        return 0
    monkeypatch.setattr(library, "load", lambda: None)
    monkeypatch.setattr(library, "why_not", lambda: "not built")
    return 2


def test_operators_are_the_kernels() -> None:
    weight, x, bias = small(), inputs(3, 64), inputs(33)
    assert torch.equal(
        operators.linear(x, weight, bias, threads=2), NativeLinear(weight, 2, bias)(x)
    )
    assert operators.linear(x.bfloat16(), weight, threads=2).dtype == torch.bfloat16
    head = NativeHead(weight, 1)
    assert torch.equal(operators.head_logits(x, weight, threads=2), head(x))
    for got, want in zip(
        operators.head_best(x, weight, 4, threads=2), head.best(x, 4), strict=True
    ):
        assert torch.equal(got, want)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layers_operator_is_the_kernel(family: str) -> None:
    layer = repacked_layer(family)
    ours = layer_inputs(layer)
    theirs = tuple(part.clone() for part in ours)
    run(layer, ours, 2)
    kernels = NativeLayers([family_layer(family)], torch.bfloat16, 1)
    pair = turns(layer)  # kept until the run
    cosines, sines = pair
    kernels.enter(theirs[0], AT.width, [(cosines.data_ptr(), sines.data_ptr())])
    kernels.layers[0].place(
        *theirs[1:3], first_row=AT.first_row, live=AT.live, first_position=AT.first_position
    )
    kernels.run(0, 1)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


@pytest.mark.parametrize("family", FAMILIES)
def test_references_serve_layers(family: str, no_library: int) -> None:
    want = layer_inputs(family_layer(family))
    got = tuple(part.clone() for part in want)
    layer = repacked_layer(family)
    run(layer, got, no_library)
    reference.attention_layer(layer, want[0], turns(layer), (want[1], want[2]), AT)
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


def test_references_serve_linears_and_heads(no_library: int) -> None:
    """Of equal logits the smaller id is better; what is no number is nobody's."""
    weight, x, bias = small(), inputs(3, 64), inputs(33)
    exact = x @ dequantise(weight, torch.float32).T
    torch.testing.assert_close(operators.linear(x, weight, bias, threads=no_library), exact + bias)
    torch.testing.assert_close(operators.head_logits(x, weight, threads=no_library), exact)
    values, ids = operators.head_best(x, weight, 4, threads=no_library)
    torch.testing.assert_close((values, ids), tuple(exact.topk(4)))
    _, ids = operators.head_best(torch.zeros(1, 64), weight, 33, threads=no_library)
    assert ids.tolist() == [list(range(33))]
    _, ids = operators.head_best(torch.full((1, 64), torch.nan), weight, 2, threads=no_library)
    assert ids.tolist() == [[-1, -1]]


@pytest.mark.parametrize("threads", THREADS)
def test_operators_are_what_they_say(threads: int) -> None:
    weight, x, bias = small(), inputs(3, 64), inputs(33)
    numbers = operators._numbers(weight)
    torch.library.opcheck(operators._linear, (x.bfloat16(), weight.data, bias, numbers, threads))
    torch.library.opcheck(operators._head_logits, (x, weight.data, numbers, threads))
    torch.library.opcheck(operators._head_best, (x, weight.data, numbers, 4, threads))


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_layers_operator_is_what_it_says(
    family: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes the stream, keys and values, and nothing else."""
    taken: list[tuple[object, ...]] = []
    layer = repacked_layer(family)
    held = tuple(part.nan_to_num() for part in layer_inputs(layer))
    with monkeypatch.context() as patch:
        patch.setattr(operators, "_dense_layer", lambda *arguments: taken.append(arguments))
        run(layer, held, threads)
    torch.library.opcheck(operators._dense_layer, taken[0])


def test_shapes_are_known_without_values() -> None:
    weight, layer = small(), repacked_layer("gemma3")
    with FakeTensorMode() as mode:
        fake = replace(weight, data=mode.from_tensor(weight.data))
        x = mode.from_tensor(inputs(2, 3, 64).bfloat16())
        found = operators.linear(x, fake, threads=2), operators.head_logits(x, fake, threads=2)
        best, ids = operators.head_best(x[0], fake, 4, threads=2)
    for out in found:
        assert isinstance(out, FakeTensor)
        assert (out.shape, out.dtype) == ((2, 3, 33), torch.bfloat16)
    assert (best.shape, best.dtype) == ((3, 4), torch.float32)
    assert (ids.shape, ids.dtype) == ((3, 4), torch.int64)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        run(layer, tuple(mode.from_tensor(part) for part in layer_inputs(layer)), 2)
    with pytest.raises(AssertionError, match="63 columns instead of 64"), mode:
        operators.linear(mode.from_tensor(inputs(63)), weight, threads=2)


class Step(torch.nn.Module):
    """A layer and a head: what an exported program holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = repacked_layer("gemma3"), small_head()

    def forward(self, stream: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        run(self.layer, (stream, keys, values), 2)
        return operators.head_logits(stream, self.head, threads=2), stream


def small_head() -> RepackedWeight:
    return repacked(built(), random_affine(40, HIDDEN, bits=8, group=32))


def test_a_step_can_be_exported_and_compiled_whole() -> None:
    """Each program computes what the step does, and changes what it changes."""
    step = Step()
    held = tuple(part.nan_to_num() for part in layer_inputs(step.layer))
    exported = torch.export.export(step, tuple(part.clone() for part in held)).module()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    changed = tuple(part.clone() for part in held)
    logits, _ = step(*changed)
    for program in (exported, compiled):
        mine = tuple(part.clone() for part in held)
        assert torch.equal(program(*mine)[0], logits)
        for one, other in zip(mine, changed, strict=True):
            assert torch.equal(one, other)
