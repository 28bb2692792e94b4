"""A draft's dense weights in the format that the C++ kernels take.

A draft only proposes, so that rounding its weights costs acceptance and never changes the text.
Four bits are a quarter of the bytes that a step reads of bfloat16; measured, a head in four bits
accepts 0.6 to 1.0 points less than in eight and drafts a token in two thirds of the time. What
makes its conditioning runs once a round over rows of any size, and keeps eight.
"""

from dataclasses import replace

from torch import Tensor

from forerun.nn.layer_weights import AttentionWeights, LayerWeights, MlpWeights
from forerun.nn.linear import LinearWeights
from forerun.quant.codec import quantise
from forerun.quant.formats import QuantFormat
from forerun.quant.packed import PackedWeight

FORMAT = QuantFormat("int4", 32)
CONDITION_FORMAT = QuantFormat("int8", 32)


def quantised_linear(part: LinearWeights, to: QuantFormat = FORMAT) -> LinearWeights:
    """As it is where it is quantised already, or not made up of whole groups."""
    weight = part.weight
    if not isinstance(weight, Tensor) or weight.shape[1] % to.group:
        return part
    return LinearWeights(quantise(weight, to), part.bias)


def quantised_layer(layer: LayerWeights) -> LayerWeights:
    """A copy; gate and up are apart in it, as the kernel of a layer takes them."""
    mixer, mlp = layer.mixer, layer.feed_forward
    assert isinstance(mixer, AttentionWeights), "a draft's layers are of attention"
    assert isinstance(mlp, MlpWeights), "and of an MLP"
    gate_up = [quantised_linear(part) for part in mlp.gate_up]
    if len(gate_up) == 1:
        gate_up = _halves(gate_up[0])
    return replace(
        layer,
        mixer=replace(mixer, qkv=[quantised_linear(part) for part in mixer.qkv]),
        output=[quantised_linear(part) for part in layer.output],
        feed_forward=replace(
            mlp, gate_up=gate_up, down=[quantised_linear(part) for part in mlp.down]
        ),
    )


def _halves(part: LinearWeights) -> list[LinearWeights]:
    weight = part.weight
    middle = weight.shape[0] // 2
    if isinstance(weight, PackedWeight):
        halves = (slice(0, middle), slice(middle, None))
        return [LinearWeights(weight.rows(half), None) for half in halves]
    return [LinearWeights(half, None) for half in (weight[:middle], weight[middle:])]
