"""A draft's dense weights in the format that the C++ kernels take.

A draft only proposes, so that rounding its weights costs acceptance and never changes the text.
Four bits are a quarter of the bytes that a step reads of bfloat16; measured, a head in four bits
accepts 0.6 to 1.0 points less than in eight and drafts a token in two thirds of the time. What
makes its conditioning runs once a round over rows of any size, and keeps eight.
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from forerun.nn.layer_weights import AttentionWeights, ExpertWeights, LayerWeights, MlpWeights
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
    """A copy; gate and up of an MLP are apart in it, as the kernel of a layer takes them."""
    mixer, rest = layer.mixer, layer.feed_forward
    assert isinstance(mixer, AttentionWeights), "a draft's layers are of attention"
    return replace(
        layer,
        mixer=replace(mixer, qkv=_quantised(mixer.qkv), gate=_quantised(mixer.gate)),
        output=_quantised(layer.output),
        feed_forward=_mlp(rest) if isinstance(rest, MlpWeights) else _experts(rest),
    )


def _quantised(parts: Sequence[LinearWeights]) -> list[LinearWeights]:
    return [quantised_linear(part) for part in parts]


def _mlp(mlp: MlpWeights) -> MlpWeights:
    gate_up = _quantised(mlp.gate_up)
    if len(gate_up) == 1:
        gate_up = _halves(gate_up[0])
    return replace(mlp, gate_up=gate_up, down=_quantised(mlp.down))


def _experts(part: ExpertWeights) -> ExpertWeights:
    return replace(
        part,
        gate_up=quantised_linear(part.gate_up),
        down=quantised_linear(part.down),
        shared=None if part.shared is None else _mlp(part.shared),
    )


def _halves(part: LinearWeights) -> list[LinearWeights]:
    weight = part.weight
    middle = weight.shape[0] // 2
    if isinstance(weight, PackedWeight):
        halves = (slice(0, middle), slice(middle, None))
        return [LinearWeights(weight.rows(half), None) for half in halves]
    return [LinearWeights(half, None) for half in (weight[:middle], weight[middle:])]
