"""An EAGLE-3 head at work: layers over pairs of a token and the target's thought (EGL-4, EGL-5)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from forerun.cache.kv import KVCache
from forerun.cache.rows import RowShape
from forerun.contract.batch import Batch
from forerun.contract.cache import LayerCache
from forerun.contract.model import Best, CacheOptions, Caches, DraftFacts, Forward
from forerun.models.blocks import Attention, Block, Mlp
from forerun.nn.fused_layers import FusedLayers
from forerun.nn.layer_weights import Heads
from forerun.nn.linear import Linear
from forerun.nn.norm import RMSNorm
from forerun.nn.rope import Rope, RopeTables


@dataclass(frozen=True, slots=True)
class Condition:
    """Streams of the target, side by side, to rows of the head's width (EGL-3)."""

    fc: Linear
    joined_norm: RMSNorm | None  # of all of them
    tap_norms: Sequence[RMSNorm]  # of each, or none
    dtype: torch.dtype

    def __call__(self, taps: Tensor) -> Tensor:
        x = taps.to(self.dtype)
        if self.joined_norm is not None:
            x = self.joined_norm(x)
        if self.tap_norms:
            parts = x.chunk(len(self.tap_norms), -1)
            x = torch.cat([norm(part) for norm, part in zip(self.tap_norms, parts, strict=True)], 1)
        return self.fc(x)

    @property
    def nbytes(self) -> int:
        joined = 0 if self.joined_norm is None else self.joined_norm.nbytes
        return self.fc.nbytes + joined + sum(norm.nbytes for norm in self.tap_norms)


@dataclass(frozen=True, slots=True)
class PairBlock:
    """The first layer: its attention reads a token and a conditioning side by side."""

    token_norm: RMSNorm
    conditioning_norm: RMSNorm
    attention: Attention
    mlp_norm: RMSNorm
    mlp: Mlp
    normed_residual: bool

    def __call__(
        self,
        tokens: Tensor,
        x: Tensor,
        batch: Batch,
        tables: Sequence[RopeTables],
        cache: LayerCache | None,
    ) -> Tensor:
        conditioning = self.conditioning_norm(x)
        pairs = torch.cat((self.token_norm(tokens), conditioning), -1)
        residual = conditioning if self.normed_residual else x
        x = self.attention(pairs, batch, tables, cache).add_(residual)
        return self.mlp(self.mlp_norm(x)).add_(x)

    @property
    def nbytes(self) -> int:
        norms = (self.token_norm, self.conditioning_norm, self.mlp_norm)
        return self.attention.nbytes + self.mlp.nbytes + sum(norm.nbytes for norm in norms)


class PairLayers(Protocol):
    """All layers of a head."""

    def __call__(
        self, tokens: Tensor, x: Tensor, batch: Batch, rope: Rope, caches: Caches
    ) -> Tensor:
        """tokens, x [B, L, hidden]; `x` stays as it is."""
        ...

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SeparateLayers:
    """Of separate operations."""

    first: PairBlock
    others: Sequence[Block]
    dtype: torch.dtype

    def __call__(
        self, tokens: Tensor, x: Tensor, batch: Batch, rope: Rope, caches: Caches
    ) -> Tensor:
        tables = (rope.of_batch(batch, self.dtype),)
        x = self.first(tokens, x.to(self.dtype), batch, tables, caches[0])
        for block, cache in zip(self.others, caches[1:], strict=True):
            x = block(x, batch, tables, cache)
        return x

    @property
    def nbytes(self) -> int:
        return self.first.nbytes + sum(block.nbytes for block in self.others)


@dataclass(frozen=True, slots=True)
class FusedPairs:
    """In one call each, over a float32 stream."""

    layers: FusedLayers

    def __call__(
        self, tokens: Tensor, x: Tensor, batch: Batch, rope: Rope, caches: Caches
    ) -> Tensor:
        stream = x.to(torch.float32).clone(memory_format=torch.contiguous_format)
        return self.layers(stream, batch, (rope,), caches, tokens=tokens)[0]

    @property
    def nbytes(self) -> int:
        return self.layers.nbytes


@dataclass(frozen=True, slots=True)
class Parts:
    """What a head is made of."""

    condition: Condition
    embed: Callable[[Tensor], Tensor]  # [...] ids to [..., hidden] in the dtype of the stream
    layers: PairLayers
    rope: Rope
    norm: RMSNorm
    head: Linear
    column_ids: Tensor | None
    normed_output: bool  # what the next step is fed is normed
    heads: Sequence[Heads]  # of each layer
    facts: DraftFacts


class Eagle3Draft:
    """A chain head with caches of its own, one a layer."""

    def __init__(self, parts: Parts, taps: Sequence[int]) -> None:
        """taps: what it takes of the target, as `TappedModel.tap` counts"""
        self._parts, self.taps = parts, tuple(taps)

    @property
    def facts(self) -> DraftFacts:
        return self._parts.facts

    @property
    def column_ids(self) -> Tensor | None:
        return self._parts.column_ids

    def new_caches(self, options: CacheOptions) -> list[LayerCache | None]:
        facts = self.facts
        shapes = [
            RowShape(heads.kv, heads.dim, heads.dim, facts.dtype, facts.device)
            for heads in self._parts.heads
        ]
        return [KVCache(shape, options.context) for shape in shapes]

    def condition(self, taps: Tensor) -> Tensor:
        return self._parts.condition(taps)

    def forward(self, batch: Batch, target_caches: Caches, draft_caches: Caches) -> Forward:
        del target_caches
        assert batch.conditioning is not None, "a head is fed what its target thought"
        parts = self._parts
        tokens = parts.embed(batch.input_ids)
        x = parts.layers(tokens, batch.conditioning, batch, parts.rope, draft_caches)
        if parts.normed_output:
            x = parts.norm(x)
        return Forward(x, x)

    def unembed(self, hidden: Tensor) -> Tensor:
        return self._parts.head(self._normed(hidden))

    def best(self, hidden: Tensor, count: int) -> Best | None:
        """As `RankedLogits` says, by column."""
        return self._parts.head.best(self._normed(hidden), count)

    def _normed(self, hidden: Tensor) -> Tensor:
        return hidden if self._parts.normed_output else self._parts.norm(hidden)
