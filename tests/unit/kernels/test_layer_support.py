"""Which layers the C++ kernel takes, and the one line that says why it does not take another."""

from dataclasses import replace

import pytest
import torch

from fixtures.delta_operands import DeltaSizes, delta_operands
from fixtures.layer_operands import attention_of, family_layer
from fixtures.native_kernels import native_library
from forerun.kernels.decoder_layer.native import NativeLayers, why_not
from forerun.kernels.layer_operands import DeltaOperands, LayerOperands, MlpOperands
from forerun.kernels.native.structs import FrDelta, FrLayer

SERVED = DeltaSizes(1, 2, 48, 16, taps=8, hidden=32, inner=32)
REFUSED = [
    (replace(SERVED, key_dim=24), "keys are 24 wide"),
    (replace(SERVED, key_dim=272), "keys are 272 wide"),
    (replace(SERVED, value_dim=24), "values are 24 wide"),
    (replace(SERVED, taps=1), "the conv has 1 taps"),
    (replace(SERVED, taps=9), "the conv has 9 taps"),
]


def test_layers_of_both_kinds_are_served() -> None:
    """06 KER-1: one after the other, in one call."""
    native_library()
    layers = [delta_operands(SERVED), family_layer("qwen3.5")]
    assert [why_not(layer, torch.bfloat16) for layer in layers] == [None, None]
    kernels = NativeLayers(layers, torch.bfloat16, 1)
    assert kernels.layers[0].nbytes > 0


@pytest.mark.parametrize(("sizes", "reason"), REFUSED, ids=lambda value: str(value)[:20])
def test_gated_delta_layers_that_are_refused(sizes: DeltaSizes, reason: str) -> None:
    """06 KER-1"""
    native_library()
    said = why_not(delta_operands(sizes), torch.float32)
    assert said is not None
    assert reason in said


def test_projections_of_a_gated_delta_layer_come_in_two_parts_at_most() -> None:
    native_library()
    layer = delta_operands(SERVED)
    mixer = layer.mixer
    assert isinstance(mixer, DeltaOperands)
    layer = replace(layer, mixer=replace(mixer, inputs=[*mixer.inputs] * 3))
    assert why_not(layer, torch.float32) == "queries, keys, values and gates are in 3 parts"


def _attention(**changed: object) -> LayerOperands:
    layer = family_layer("qwen3.5")
    return replace(layer, mixer=replace(attention_of(layer), **changed))  # type: ignore[arg-type]


def test_attention_layers_that_are_refused() -> None:
    """06 KER-1"""
    native_library()
    layer = family_layer("llama")
    assert why_not(layer, torch.float16) == "keys and values are torch.float16"
    said = why_not(_attention(head_dim=48), torch.float32)
    assert said == "heads are 48 wide, which is no multiple of 32"
    four = [*attention_of(layer).qkv] * 2
    assert why_not(_attention(qkv=four), torch.float32) == "queries, keys and values are in 6 parts"
    mlp = layer.feed_forward
    assert isinstance(mlp, MlpOperands)
    layer = replace(layer, feed_forward=replace(mlp, activation="relu"))
    assert why_not(layer, torch.float32) == "the activation is relu"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key_dim", 24),
        ("key_dim", 512),
        ("key_dim", 0),
        ("value_dim", 24),
        ("value_heads", 3),
        ("key_heads", 0),
        ("taps", 1),
        ("taps", 9),
    ],
)
def test_the_kernel_itself_says_which_states_it_cannot_hold(field: str, value: int) -> None:
    """06 KER-1: `fr_layer_supported`, of sizes that memory would be written by."""
    library = native_library()
    delta = FrDelta(taps=4, key_heads=2, value_heads=4, key_dim=16, value_dim=16)
    delta.inputs[0].rows, delta.inputs[0].columns = 2 * 2 * 16 + 2 * 4 * 16, 32
    delta.inputs[0].group, delta.inputs[0].bits = 32, 4
    layer = FrLayer(hidden=32)
    layer.output.rows, layer.output.columns = 32, 64
    layer.output.group, layer.output.bits = 32, 4
    layer.delta.contents = delta
    assert library.layer_supported(layer)
    setattr(delta, field, value)
    assert not library.layer_supported(layer)
