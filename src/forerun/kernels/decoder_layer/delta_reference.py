"""A decoder layer of the gated delta rule in plain torch: what one C++ call means.

Computed in float32 over dequantised weights; nothing is rounded but by that (06 QWN-7 to QWN-10).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.kernels.causal_conv.reference import ConvFilter, causal_conv
from forerun.kernels.decoder_layer.reference import (
    Product,
    add_mixed,
    exact_product,
    feed_forward,
)
from forerun.kernels.gated_delta.reference import DeltaRows, decisions, stepwise, unit
from forerun.kernels.layer_operands import DeltaOperands, LayerOperands
from forerun.kernels.rms_norm.reference import rms_norm


@dataclass(frozen=True, slots=True)
class DeltaPass:
    """What rows leave behind. Lists have one entry a boundary, and the end's."""

    tails: Sequence[Tensor]  # [taps - 1, channels] raw
    states: Sequence[Tensor]  # [value_heads, value_dim, key_dim]
    raw: Tensor  # [width, channels]
    steps: DeltaRows  # with a leading dimension of 1


def delta_layer(
    layer: LayerOperands,
    stream: Tensor,
    tail: Tensor,
    state: Tensor,
    *,
    boundaries: Sequence[int] = (),
    product: Product = exact_product,
) -> DeltaPass:
    """Replace the stream by what leaves the layer.

    stream  [width, hidden] float32
    tail    [taps - 1, channels] raw rows before the new ones
    state   [value_heads, value_dim, key_dim] before them
    """
    mixer = layer.mixer
    assert isinstance(mixer, DeltaOperands), "this is a gated-delta layer"
    into = rms_norm(stream, layer.input_norm, layer.epsilon)
    joined = torch.cat([product(part, into) for part in mixer.inputs], -1)
    channels = mixer.conv_weight.shape[0]
    raw, gates = joined[:, :channels], joined[:, channels:]
    filtered = ConvFilter(mixer.conv_weight, mixer.conv_bias, silu=True)
    conv = causal_conv(tail[None], raw[None], filtered, boundaries=boundaries)
    steps = _steps(mixer, conv.rows, functional.linear(into, mixer.gates))
    scan = stepwise(steps, state[None], boundaries=boundaries)
    normed = rms_norm(scan.outputs[0], mixer.norm, layer.epsilon)
    mixed = normed.flatten(1) * functional.silu(gates)
    add_mixed(layer, stream, mixed, product)
    feed_forward(layer, stream, product)
    tails, states = ([part[0] for part in parts] for parts in (conv.tails, scan.states))
    return DeltaPass(tails, states, raw, steps)


def _steps(mixer: DeltaOperands, rows: Tensor, gates: Tensor) -> DeltaRows:
    """rows: [1, width, channels]; gates: [width, 2 * value_heads]."""
    by_key, by_value = (mixer.key_heads, mixer.key_dim), (mixer.value_heads, mixer.value_dim)
    shapes = (by_key, by_key, by_value)
    parts = rows.split_with_sizes([heads * dim for heads, dim in shapes], -1)
    queries, keys, values = (
        part.view(1, -1, *shape) for part, shape in zip(parts, shapes, strict=True)
    )
    decay, beta = decisions(gates[None], mixer.step_bias, mixer.log_decay)
    return DeltaRows(unit(queries) * mixer.key_dim**-0.5, unit(keys), values, decay, beta)
