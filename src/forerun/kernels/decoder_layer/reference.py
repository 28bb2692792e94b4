"""A decoder layer of causal attention in plain torch: what one C++ call means.

Computed in float32 over dequantised weights; keys and values are rounded to the dtype of their
buffers, and nothing else is.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from forerun.kernels.dequantise.reference import dequantise
from forerun.kernels.experts.reference import experts, gated_mlp
from forerun.kernels.layer_operands import AttentionOperands, LayerOperands, MlpOperands
from forerun.kernels.operands import BiasedLinear
from forerun.kernels.rms_norm.reference import rms_norm

Product = Callable[[BiasedLinear, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Place:
    """Where new rows go, and what they see of the buffers."""

    width: int  # new rows
    first_row: int  # of the buffers
    live: int  # rows of the history, which end with the new ones
    first_position: int  # of the first of them


def exact_product(part: BiasedLinear, x: Tensor) -> Tensor:
    """[n, in] to [n, out]."""
    bias = None if part.bias is None else part.bias.float()
    return functional.linear(x, dequantise(part.weight, torch.float32), bias)


def attention_layer(
    layer: LayerOperands,
    stream: Tensor,
    turns: tuple[Tensor, Tensor],
    rows: tuple[Tensor, Tensor],
    at: Place,
    *,
    tokens: Tensor | None = None,
    product: Product = exact_product,
) -> None:
    """Write the new rows of keys and values, and replace the stream by what leaves the layer.

    stream  [width, hidden] float32
    turns   cosines and sines [width, rotary_dim / 2] float32
    rows    keys and values [kv_heads, capacity, head_dim]
    tokens  [width, hidden] float32, of a layer that reads them beside the stream
    """
    mixer = layer.mixer
    assert isinstance(mixer, AttentionOperands), "this is a layer of attention"
    into = rms_norm(stream, layer.input_norm, layer.epsilon)
    if layer.normed_residual:
        stream.copy_(into)
    if layer.token_norm is not None:
        assert tokens is not None, "this layer reads tokens"
        into = torch.cat((rms_norm(tokens, layer.token_norm, layer.epsilon), into), -1)
    queries, *new = _projected(mixer, into, turns, layer.epsilon, product)
    end = at.first_row + at.width
    for buffer, written in zip(rows, new, strict=True):
        buffer[:, at.first_row : end] = written.transpose(0, 1).to(buffer.dtype)
    keys, values = (buffer[:, end - at.live : end].float() for buffer in rows)
    attended = _attended(mixer, queries, keys, values)
    if mixer.gate is not None:
        attended *= product(mixer.gate, into).sigmoid()
    add_mixed(layer, stream, attended, product)
    feed_forward(layer, stream, product)


def add_mixed(layer: LayerOperands, stream: Tensor, mixed: Tensor, product: Product) -> None:
    """Add to the stream what the output projection makes of [width, mixed] rows."""
    stream += _outer_norm(layer, layer.attended_norm, product(layer.output, mixed))


def feed_forward(layer: LayerOperands, stream: Tensor, product: Product) -> None:
    """Add to the stream what the MLP, or a mixture of experts, makes of it."""
    part = layer.feed_forward
    into = rms_norm(stream, layer.mlp_norm, layer.epsilon)
    if isinstance(part, MlpOperands):
        made = gated_mlp(part, into, product)
    else:
        made = experts(part, into, product)
    stream += _outer_norm(layer, layer.output_norm, made)


def _projected(
    layer: AttentionOperands,
    into: Tensor,
    turns: tuple[Tensor, Tensor],
    epsilon: float,
    product: Product,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [width, heads, head_dim], normed and turned as the family does."""
    joined = torch.cat([product(part, into) for part in layer.qkv], -1)
    heads = joined.view(joined.shape[0], -1, layer.head_dim)
    parts = (layer.heads, layer.kv_heads, layer.kv_heads)
    queries, keys, values = heads.split_with_sizes(parts, 1)
    if layer.query_norm is not None:
        queries = rms_norm(queries, layer.query_norm, epsilon)
    if layer.key_norm is not None:
        keys = rms_norm(keys, layer.key_norm, epsilon)
    return _turned(queries, turns), _turned(keys, turns), values


def _turned(heads: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Of the leading d dimensions pair (i, i + d/2) turns by one angle; see `rope.reference`."""
    cosines, sines = (part[:, None] for part in turns)
    half = cosines.shape[-1]
    low, high, others = heads.tensor_split((half, 2 * half), -1)
    return torch.cat((low * cosines - high * sines, high * cosines + low * sines, others), -1)


def _attended(layer: AttentionOperands, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """[width, heads * head_dim]; the last of the live keys is that of the last query."""
    width, live = queries.shape[0], keys.shape[1]
    grouped = queries.view(width, layer.kv_heads, -1, layer.head_dim)
    scores = torch.einsum("qhgd,hkd->hgqk", grouped, keys) * layer.scale
    behind = torch.arange(live - width, live)[:, None] - torch.arange(live)
    seen = (behind >= 0) & (behind < (layer.window or live))
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hgqk,hkd->qhgd", weights, values).flatten(1)


def _outer_norm(layer: LayerOperands, norm: Tensor | None, added: Tensor) -> Tensor:
    return added if norm is None else rms_norm(added, norm, layer.epsilon)
