"""The checkpoint's own head, which proposes the token after next (QWN-13)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forerun.contract.batch import Batch
from forerun.contract.cache import LayerCache
from forerun.contract.model import Best, CacheOptions, Caches, DraftFacts, Forward
from forerun.models.config import ConfigReader
from forerun.models.decoder import Parts, Stack
from forerun.models.drafts.quantising import CONDITION_FORMAT, quantised_layer, quantised_linear
from forerun.models.layer_caches import NewCache
from forerun.models.qwen3_5.tensors import HybridBuilder
from forerun.nn.embedding import Embedding
from forerun.nn.linear import Linear
from forerun.nn.norm import RMSNorm
from forerun.nn.rope import Rope

PREFIX = "mtp."  # whatever the model's own tensors lie under


@dataclass(frozen=True, slots=True)
class Shared:
    """What the head has of its target, which counts the bytes."""

    embedding: Embedding
    head: Linear
    ropes: Sequence[Rope]


@dataclass(frozen=True, slots=True)
class Own:
    """What it has of its own."""

    token_norm: RMSNorm
    conditioning_norm: RMSNorm
    fc: Linear
    stack: Stack  # of one layer
    caches: Sequence[NewCache]
    norm: RMSNorm

    @property
    def nbytes(self) -> int:
        norms = (self.token_norm, self.conditioning_norm, self.norm)
        return self.fc.nbytes + self.stack.nbytes + sum(norm.nbytes for norm in norms)


class MtpDraft:
    """A layer over pairs of a token and what its target, or the step before, made of the last."""

    def __init__(self, own: Own, shared: Shared, facts: DraftFacts) -> None:
        self._own, self._shared, self._facts = own, shared, facts

    @property
    def facts(self) -> DraftFacts:
        return self._facts

    @property
    def column_ids(self) -> Tensor | None:
        return None

    def new_caches(self, options: CacheOptions) -> list[LayerCache | None]:
        return [new_cache(options) for new_cache in self._own.caches]

    def condition(self, taps: Tensor) -> Tensor:
        return taps

    def forward(self, batch: Batch, target_caches: Caches, draft_caches: Caches) -> Forward:
        del target_caches
        assert batch.conditioning is not None, "a head is fed what its target thought"
        own, shared, stream = self._own, self._shared, self._own.stack.stream
        tokens = own.token_norm(shared.embedding(batch.input_ids).to(stream))
        thoughts = own.conditioning_norm(batch.conditioning.to(stream))
        x = own.fc(torch.cat((tokens, thoughts), -1))
        x, _ = own.stack(x, batch, shared.ropes, draft_caches)
        hidden = own.norm(x)
        return Forward(hidden, hidden)

    def unembed(self, hidden: Tensor) -> Tensor:
        head = self._shared.head
        return head(hidden.to(head.dtype))

    def best(self, hidden: Tensor, count: int) -> Best | None:
        """As `RankedLogits` says."""
        return self._shared.head.best(hidden, count)


def build_head(config: ConfigReader, layers: HybridBuilder, parts: Parts) -> MtpDraft | None:
    """None where the checkpoint has no head, whatever its config announces, or none is wanted
    (CON-5)."""
    builder = layers.builder
    weights, shape = builder.weights, builder.shape
    if not weights.own_draft:
        weights.skip(PREFIX)
    if f"{PREFIX}fc.weight" not in weights:
        return None
    config.text().refuse("mtp_use_dedicated_embeddings")
    hidden, own_threads = shape.hidden_size, parts.stack.own_threads  # fused or not: torch has one
    sparse = layers.config.experts is not None
    layer = layers.layer(0, f"{PREFIX}layers.0.", attends=True, sparse=sparse)
    if own_threads:
        layer = quantised_layer(layer)
    stack = builder.stack([layer], fuse=own_threads)
    (picked,) = weights.pick(2 * hidden, (f"{PREFIX}fc", hidden))
    if own_threads:
        picked = quantised_linear(picked, CONDITION_FORMAT)
    fc = Linear(picked.weight, picked.bias, dtype=stack.stream, kernels=weights.placement.kernels)
    own = Own(
        token_norm=builder.norm(f"{PREFIX}pre_fc_norm_embedding"),
        conditioning_norm=builder.norm(f"{PREFIX}pre_fc_norm_hidden"),
        fc=fc,
        stack=stack,
        caches=builder.caches([layer.mixer], stack),
        norm=builder.norm(f"{PREFIX}norm"),
    )
    facts = DraftFacts(
        columns=parts.embedding.rows,
        hidden_size=hidden,
        taps_size=hidden,
        step_size=hidden,
        max_context=parts.max_context,
        weight_bytes=own.nbytes,
        device=parts.device,
        dtype=parts.dtype,
    )
    return MtpDraft(own, Shared(parts.embedding, parts.head, parts.ropes), facts)
