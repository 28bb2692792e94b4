"""Layers of separate operations: attention, MLP, and the blocks that they make up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from forerun.contract.batch import Batch
from forerun.contract.cache import LayerCache
from forerun.models.projection import Projection
from forerun.nn import attention as nn_attention
from forerun.nn.layer_weights import Heads
from forerun.nn.norm import RMSNorm
from forerun.nn.rope import RopeTables


class Held(Protocol):
    """Whatever holds parameters."""

    @property
    def nbytes(self) -> int: ...


class Layer(Protocol):
    """What a cache must know of a layer."""

    @property
    def heads(self) -> Heads: ...

    @property
    def window(self) -> int | None:
        """Positions that a query sees, itself included; None: all before it."""
        ...


class Block(Held, Layer, Protocol):
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
    ) -> None:
        """
        norm  of queries and keys per head, weight [query + kv, dim]: they are normed as one tensor
        rope  which of the model's rotary tables turns this layer
        """
        self._qkv, self._output, self._norm, self._attend = qkv, output, norm, attend
        self._rope = rope
        self._turned = (heads.query + heads.kv, heads.kv)  # [queries, keys | values]
        self._apart = (heads.query, heads.kv)
        self._all, self._dim = heads.query + 2 * heads.kv, heads.dim
        self.heads, self.window = heads, attend.window

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
        return self._output(attended.transpose(1, 2).flatten(2))

    @property
    def nbytes(self) -> int:
        norm = 0 if self._norm is None else self._norm.nbytes
        return self._qkv.nbytes + self._output.nbytes + norm


class Mlp:
    """A gated MLP over one fused projection of gate and up (LIN-10)."""

    def __init__(
        self, gate_up: Projection, down: Projection, activation: Callable[[Tensor], Tensor]
    ):
        self._gate_up, self._down, self._activation = gate_up, down, activation

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._activation(self._gate_up(x)))

    @property
    def nbytes(self) -> int:
        return self._gate_up.nbytes + self._down.nbytes


@dataclass(frozen=True, slots=True)
class PreNormBlock:
    """Norms in front of attention and MLP, and nowhere else (llama, qwen3)."""

    input_norm: RMSNorm
    attention: Attention
    mlp_norm: RMSNorm
    mlp: Mlp

    def __call__(
        self, x: Tensor, batch: Batch, tables: Sequence[RopeTables], cache: LayerCache | None
    ) -> Tensor:
        x = self.attention(self.input_norm(x), batch, tables, cache).add_(x)
        return self.mlp(self.mlp_norm(x)).add_(x)

    @property
    def heads(self) -> Heads:
        return self.attention.heads

    @property
    def window(self) -> int | None:
        return self.attention.window

    @property
    def nbytes(self) -> int:
        return sum(
            part.nbytes for part in (self.input_norm, self.attention, self.mlp_norm, self.mlp)
        )


@dataclass(frozen=True, slots=True)
class SandwichBlock:
    """Norms in front of attention and MLP and behind them (gemma3)."""

    input_norm: RMSNorm
    attention: Attention
    attention_norm: RMSNorm
    mlp_input_norm: RMSNorm
    mlp: Mlp
    mlp_norm: RMSNorm

    def __call__(
        self, x: Tensor, batch: Batch, tables: Sequence[RopeTables], cache: LayerCache | None
    ) -> Tensor:
        attended = self.attention(self.input_norm(x), batch, tables, cache)
        x = self.attention_norm(attended).add_(x)
        return self.mlp_norm(self.mlp(self.mlp_input_norm(x))).add_(x)

    @property
    def heads(self) -> Heads:
        return self.attention.heads

    @property
    def window(self) -> int | None:
        return self.attention.window

    @property
    def nbytes(self) -> int:
        norms = (self.input_norm, self.attention_norm, self.mlp_input_norm, self.mlp_norm)
        return self.attention.nbytes + self.mlp.nbytes + sum(norm.nbytes for norm in norms)
