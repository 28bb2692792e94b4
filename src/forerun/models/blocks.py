"""Layers of separate operations: ways to mix tokens, an MLP, and the blocks that they make up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from forerun.contract.batch import Batch
from forerun.contract.cache import LayerCache
from forerun.models.projection import Projection
from forerun.nn import attention as nn_attention
from forerun.nn.layer_weights import DeltaWeights, Heads
from forerun.nn.norm import RMSNorm
from forerun.nn.recurrence import GatedDelta
from forerun.nn.rope import RopeTables


class Held(Protocol):
    """Whatever holds parameters."""

    @property
    def nbytes(self) -> int: ...


class Mixer(Held, Protocol):
    """What a layer does between positions."""

    def __call__(
        self, x: Tensor, batch: Batch, tables: Sequence[RopeTables], cache: LayerCache | None
    ) -> Tensor:
        """[B, L, hidden] to the same shape; the result is the caller's own."""
        ...


class FeedForward(Held, Protocol):
    """What a layer does to each position alone."""

    def __call__(self, x: Tensor) -> Tensor:
        """[B, L, hidden] to the same shape; the result is the caller's own."""
        ...


class Block(Held, Protocol):
    """One layer of separate operations: the residual stream in, the residual stream out."""

    def __call__(
        self, x: Tensor, batch: Batch, tables: Sequence[RopeTables], cache: LayerCache | None
    ) -> Tensor:
        """A new tensor; `x` stays as it is, since a tap may hold it."""
        ...


class Attention:
    """Causal attention over one fused projection of queries, keys and values."""

    def __init__(
        self,
        qkv: Projection,
        output: Projection,
        heads: Heads,
        attend: nn_attention.Attention,
        *,
        norm: RMSNorm | None = None,
        rope: int = 0,
        gate: Projection | None = None,
    ) -> None:
        """
        norm  of queries and keys per head, weight [query + kv, dim]: they are normed as one tensor
        rope  which of the model's rotary tables turns this layer
        gate  its sigmoid multiplies what is attended to (QWN-6)
        """
        self._qkv, self._output, self._norm, self._attend = qkv, output, norm, attend
        self._rope, self._gate = rope, gate
        self._turned = (heads.query + heads.kv, heads.kv)  # [queries, keys | values]
        self._apart = (heads.query, heads.kv)
        self._all, self._dim = heads.query + 2 * heads.kv, heads.dim

    def __call__(
        self, x: Tensor, batch: Batch, tables: Sequence[RopeTables], cache: LayerCache | None
    ) -> Tensor:
        """[B, L, hidden] to the same shape."""
        rows, width, _ = x.shape
        states = self._qkv(x).view(rows, width, self._all, self._dim)
        turned, values = states.split_with_sizes(self._turned, 2)
        if self._norm is not None:
            turned = self._norm(turned)
        turned = tables[self._rope].rotate(turned)
        queries, keys = turned.transpose(1, 2).split_with_sizes(self._apart, 1)
        attended = self._attend(queries, keys, values.transpose(1, 2), batch, cache=cache)
        joined = attended.transpose(1, 2).flatten(2)
        if self._gate is not None:
            joined = joined * self._gate(x).sigmoid_()
        return self._output(joined)

    @property
    def nbytes(self) -> int:
        maybe = (self._norm, self._gate)
        others = sum(part.nbytes for part in maybe if part is not None)
        return self._qkv.nbytes + self._output.nbytes + others


class GatedDeltaMixer:
    """A gated-delta layer: what decides on it, and its gated result, in float32 (QWN-9, QWN-10)."""

    def __init__(
        self, layer: int, weights: DeltaWeights, inputs: Projection, output: Projection
    ) -> None:
        """
        layer   its index in `Batch.writes`
        inputs  of queries, keys, values and output gates
        """
        self._inputs, self._output, self._weights = inputs, output, weights
        heads = weights.heads
        self._recur = GatedDelta(layer, weights.conv_weight, weights.conv_bias, heads)
        channels, values = sum(heads.widths), heads.value_heads * heads.value_dim
        self._sizes = (channels, values)

    def __call__(
        self, x: Tensor, batch: Batch, tables: Sequence[RopeTables], cache: LayerCache | None
    ) -> Tensor:
        del tables
        mixed, gates = self._inputs(x).split_with_sizes(self._sizes, -1)
        decay, beta = self._weights.decisions(x)
        made = self._recur(mixed, decay, beta, batch, cache=cache)
        gated = self._weights.norm(made.float()).flatten(2) * functional.silu(gates.float())
        return self._output(gated.to(x.dtype))

    @property
    def nbytes(self) -> int:
        weights = self._weights
        tensors = (weights.gates, weights.log_decay, weights.step_bias)
        own = sum(tensor.nbytes for tensor in tensors) + weights.norm.nbytes
        return own + self._inputs.nbytes + self._output.nbytes + self._recur.nbytes


class Mlp:
    """A gated MLP over one fused projection of gate and up (LIN-10)."""

    def __init__(
        self, gate_up: Projection, down: Projection, activation: Callable[[Tensor], Tensor]
    ) -> None:
        self._gate_up, self._down, self._activation = gate_up, down, activation

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._activation(self._gate_up(x)))

    @property
    def nbytes(self) -> int:
        return self._gate_up.nbytes + self._down.nbytes


@dataclass(frozen=True, slots=True)
class PreNormBlock:
    """Norms in front of mixer and feed-forward, and nowhere else (llama, the qwen families)."""

    input_norm: RMSNorm
    mixer: Mixer
    mlp_norm: RMSNorm
    feed_forward: FeedForward

    def __call__(
        self, x: Tensor, batch: Batch, tables: Sequence[RopeTables], cache: LayerCache | None
    ) -> Tensor:
        x = self.mixer(self.input_norm(x), batch, tables, cache).add_(x)
        return self.feed_forward(self.mlp_norm(x)).add_(x)

    @property
    def nbytes(self) -> int:
        norms = self.input_norm.nbytes + self.mlp_norm.nbytes
        return norms + self.mixer.nbytes + self.feed_forward.nbytes


@dataclass(frozen=True, slots=True)
class SandwichBlock:
    """Norms in front of mixer and feed-forward and behind them (gemma3)."""

    input_norm: RMSNorm
    mixer: Mixer
    mixer_norm: RMSNorm
    mlp_input_norm: RMSNorm
    feed_forward: FeedForward
    mlp_norm: RMSNorm

    def __call__(
        self, x: Tensor, batch: Batch, tables: Sequence[RopeTables], cache: LayerCache | None
    ) -> Tensor:
        mixed = self.mixer(self.input_norm(x), batch, tables, cache)
        x = self.mixer_norm(mixed).add_(x)
        return self.mlp_norm(self.feed_forward(self.mlp_input_norm(x))).add_(x)

    @property
    def nbytes(self) -> int:
        norms = (self.input_norm, self.mixer_norm, self.mlp_input_norm, self.mlp_norm)
        parts = self.mixer.nbytes + self.feed_forward.nbytes
        return parts + sum(norm.nbytes for norm in norms)
