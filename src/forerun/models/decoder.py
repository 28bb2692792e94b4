"""The decoder that families share: the model around a stack of layers, whatever they are made of.

A family builds the parts and hands them over. A forward computes the rotary tables once for all
layers; what a layer needs beyond its input is an attribute set at load.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from forerun.base.errors import LoadError
from forerun.contract.batch import Batch
from forerun.contract.cache import LayerCache
from forerun.contract.model import Best, CacheOptions, Caches, DraftModel, Forward, ModelFacts
from forerun.contract.recurrence import Fold
from forerun.models.blocks import Block, Held
from forerun.models.layer_caches import NewCache
from forerun.nn.embedding import Embedding
from forerun.nn.fused_layers import Streams
from forerun.nn.linear import Linear
from forerun.nn.norm import RMSNorm
from forerun.nn.recurrence import GatedDelta
from forerun.nn.rope import Rope

_UNIT_VECTORS = 256  # pushed through the head at once: bounds the logits held


class Stack(Held, Protocol):
    """All layers of a model."""

    @property
    def stream(self) -> torch.dtype:
        """Of what passes from layer to layer."""
        ...

    @property
    def own_threads(self) -> bool:
        """Whether the products of the layers run on threads that are not torch's."""
        ...

    @property
    def fold(self) -> Fold:
        """What caches fold inputs into recurrent states with: as the layers do, bit for bit."""
        ...

    def __call__(
        self,
        x: Tensor,
        batch: Batch,
        ropes: Sequence[Rope],
        caches: Sequence[LayerCache | None] | None,
        *,
        taps: Sequence[int] = (),
    ) -> tuple[Tensor, Streams]:
        """What leaves the last layer, and the streams entering those named by `taps`.

        `x` may be changed. None for `caches`: attend within the batch alone (CON-9).
        """
        ...


class Blocks:
    """A stack of separate operations."""

    def __init__(
        self, blocks: Sequence[Block], dtype: torch.dtype, *, own_threads: bool = False
    ) -> None:
        self._blocks, self.stream, self.own_threads = tuple(blocks), dtype, own_threads
        self.fold: Fold = GatedDelta.fold

    def __call__(
        self,
        x: Tensor,
        batch: Batch,
        ropes: Sequence[Rope],
        caches: Sequence[LayerCache | None] | None,
        *,
        taps: Sequence[int] = (),
    ) -> tuple[Tensor, Streams]:
        if caches is None:
            caches = (None,) * len(self._blocks)
        tables = tuple(rope.of_batch(batch, self.stream) for rope in ropes)
        streams: Streams = {}
        for index, (block, cache) in enumerate(zip(self._blocks, caches, strict=True)):
            if index in taps:
                streams[index] = x
            x = block(x, batch, tables, cache)
        return x, streams

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._blocks)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a model is made of."""

    embedding: Embedding
    stack: Stack
    caches: Sequence[NewCache]  # one a layer
    ropes: Sequence[Rope]
    norm: RMSNorm
    head: Linear
    max_context: int
    dtype: torch.dtype  # of caches, and of activations where blocks are separate operations
    device: torch.device
    embedding_scale: float = 1.0
    softcap: float | None = None  # of the logits


class DecoderModel:
    """A target model over the layers of one family, with taps and tables for drafts."""

    def __init__(self, parts: Parts, self_draft: DraftModel | None = None) -> None:
        """self_draft: the checkpoint's own head (CON-5)"""
        self._parts, self._self_draft = parts, self_draft
        self._taps: tuple[int, ...] = ()
        held: list[Held] = [parts.embedding, parts.stack, parts.norm, parts.head]
        self._facts = ModelFacts(
            vocab_size=parts.embedding.rows,
            hidden_size=parts.embedding.width,
            layers=len(parts.caches),
            max_context=parts.max_context,
            weight_bytes=sum(layer.nbytes for layer in held),
            device=parts.device,
            dtype=parts.dtype,
            own_threads=parts.stack.own_threads,
        )

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    def new_caches(self, options: CacheOptions) -> list[LayerCache | None]:
        return [new_cache(options) for new_cache in self._parts.caches]

    def forward(self, batch: Batch, caches: Caches | None) -> Forward:
        assert not batch.media, "this model takes text only; whoever prepared the request knew"
        parts = self._parts
        stack = parts.stack
        x = parts.embedding(batch.input_ids).to(stack.stream)
        if parts.embedding_scale != 1.0:
            x = x.mul_(parts.embedding_scale)
        x, streams = stack(x, batch, parts.ropes, caches, taps=self._taps)
        hidden = parts.norm(x)
        if not self._taps:
            return Forward(hidden, hidden)
        streams[self._facts.layers] = x
        return Forward(hidden, torch.cat([streams[index] for index in self._taps], -1))

    def unembed(self, hidden: Tensor) -> Tensor:
        logits = self.raw_logits(hidden)
        cap = self._parts.softcap
        return logits if cap is None else (logits / cap).tanh_().mul_(cap)

    def best(self, hidden: Tensor, count: int) -> Best | None:
        """As `RankedLogits` says. A softcap makes equals of logits that differ."""
        return None if self._parts.softcap is not None else self._parts.head.best(hidden, count)

    def embed(self, ids: Tensor) -> Tensor:
        """Rows of the table in the dtype of the stream; of gemma3 too without sqrt(hidden_size)."""
        return self._parts.embedding(ids)

    def raw_logits(self, hidden: Tensor) -> Tensor:
        head = self._parts.head
        return head(hidden.to(head.dtype))

    def head_rows(self, ids: Tensor) -> Tensor:
        """What the head makes of unit vectors: a packed weight shows its rows in no other way.

        So they are the values that serve, rounded to the model's dtype.
        """
        width = self._facts.hidden_size
        rows = torch.empty(len(ids), width, dtype=self._facts.dtype, device=self._facts.device)
        for first in range(0, width, _UNIT_VECTORS):
            end = min(first + _UNIT_VECTORS, width)
            inputs = rows.new_zeros(end - first + 1, width)
            inputs[:-1, first:end].fill_diagonal_(1)
            products = self.raw_logits(inputs)[:, ids]
            rows[:, first:end] = (products[:-1] - products[-1]).T  # the last one is the bias
        return rows

    def self_draft(self) -> DraftModel | None:
        return self._self_draft

    def tap(self, layers: Sequence[int]) -> None:
        wrong = [index for index in layers if not 0 <= index <= self._facts.layers]
        if wrong:
            raise LoadError(
                f"a draft asks for the stream after layer {wrong[0]}; "
                f"the model has {self._facts.layers} layers"
            )
        self._taps = tuple(layers)
