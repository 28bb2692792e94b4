"""A draft's dense weights in the format that the C++ kernels take.

A draft only proposes, so that rounding its weights costs acceptance and never changes the text.
Four bits are a quarter of the bytes that a step reads of bfloat16; measured, a head in four bits
accepts 0.6 to 1.0 points less than in eight and drafts a token in two thirds of the time. What
makes its conditioning runs once a round over rows of any size, and keeps eight.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from forerun.nn.layer_weights import AttentionWeights, ExpertWeights, LayerWeights, MlpWeights
from forerun.nn.linear import LinearWeights, stack_parts
from forerun.quant.codec import quantise
from forerun.quant.formats import QuantFormat
from forerun.quant.packed import PackedWeight
from forerun.quant.stored import packed_weight, stored_shapes

FORMAT = QuantFormat("int4", 32)
CONDITION_FORMAT = QuantFormat("int8", 32)

SLAB_BYTES = 1 << 20  # of the source; quantising takes some tens of times as much for a moment


def quantised_linear(part: LinearWeights, to: QuantFormat = FORMAT) -> LinearWeights:
    """As it is where it is quantised already, or not made up of whole groups."""
    weight = part.weight
    if not isinstance(weight, Tensor) or weight.shape[1] % to.group:
        return part
    return LinearWeights(_by_slabs(weight, to), part.bias)


def _by_slabs(weight: Tensor, to: QuantFormat) -> PackedWeight:
    """What `quantise` makes of the whole, of some rows at a time (LIN-12)."""
    shapes = stored_shapes(weight.shape[0], weight.shape[1], to)
    words = torch.empty(shapes.words, dtype=torch.uint32, device=weight.device)
    scale = torch.empty(shapes.groups, dtype=torch.float16, device=weight.device)
    points = torch.empty_like(scale)
    rows = max(1, SLAB_BYTES // (weight.shape[1] * weight.element_size()))
    for first in range(0, len(weight), rows):
        slab = slice(first, first + rows)
        made = quantise(weight[slab], to, torch.float16)
        assert made.zero_points is not None, "formats of drafts are affine"
        words[slab], scale[slab], points[slab] = made.data.words, made.data.scale, made.zero_points
    return packed_weight(words, scale, points, to)


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
        gate_up = stack_parts(gate_up[0], 2)
    return replace(mlp, gate_up=gate_up, down=_quantised(mlp.down))


def _experts(part: ExpertWeights) -> ExpertWeights:
    return replace(
        part,
        gate_up=quantised_linear(part.gate_up),
        down=quantised_linear(part.down),
        shared=None if part.shared is None else _mlp(part.shared),
    )
