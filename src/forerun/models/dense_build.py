"""Building a dense model from a checkpoint: the fields and tensors that families have in common."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from forerun.base.errors import LoadError
from forerun.base.logs import logger
from forerun.models.config import ConfigReader
from forerun.models.dense import Attention, Block, DenseModel, Heads, Mlp, Parts, PreNormBlock
from forerun.models.projection import Projection
from forerun.models.weights import Weights
from forerun.nn import attention as nn_attention
from forerun.nn.activation import GATED
from forerun.nn.embedding import Embedding
from forerun.nn.norm import RMSNorm
from forerun.nn.rope import Rope, RopeParameters, from_config

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class DenseShape:
    """The fields of config.json that every dense family has."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: Heads
    eps: float
    max_context: int
    tied: bool


def read_shape(config: ConfigReader) -> DenseShape:
    """The common fields, checked against each other."""
    config.refuse("use_bidirectional_attention")
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv = config.integer("num_key_value_heads", query)
    if query % kv:
        raise LoadError(
            f"config.json: num_key_value_heads {kv} does not divide num_attention_heads {query}"
        )
    if hidden % query and not config.has("head_dim"):
        raise LoadError(
            f"config.json: num_attention_heads {query} does not divide hidden_size {hidden}, "
            "and there is no head_dim"
        )
    head_dim = config.integer("head_dim", hidden // query)
    if head_dim % 2:
        raise LoadError(f"config.json: heads are {head_dim} wide; head_dim must be even for rope")
    return DenseShape(
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        layers=config.integer("num_hidden_layers"),
        heads=Heads(query, kv, head_dim),
        eps=config.number("rms_norm_eps"),
        max_context=config.integer("max_position_embeddings"),
        tied=config.flag("tie_word_embeddings"),
    )


def whole_head_rope(config: ConfigReader, head_dim: int) -> RopeParameters:
    """Rotary parameters of a family that turns all dimensions of a head (LLA-1).

    transformers ignores `partial_rotary_factor` in these families, and fails where the rope kind
    is not the default.
    """
    parameters = from_config(config.merged(), head_dim)
    if parameters.dim == head_dim:
        return parameters
    if parameters.kind != "default":
        config.refuse("partial_rotary_factor", unless=(1, 1.0))
        raise LoadError(
            f"config.json: rope type {parameters.kind} with a partial_rotary_factor is not "
            "implemented for this architecture"
        )
    log.warning("partial_rotary_factor has no effect in this architecture; the whole head turns")
    return replace(parameters, dim=head_dim)


@dataclass(frozen=True, slots=True)
class DenseBuilder:
    """Makes a family's layers out of the tensors under one prefix."""

    shape: DenseShape
    weights: Weights
    prefix: str  # of everything but the head: "model."
    norm_shift: bool = False  # norm weights are stored minus one

    def at(self, layer: int) -> str:
        return f"{self.prefix}layers.{layer}."

    def norm(self, path: str) -> RMSNorm:
        """A norm over the residual stream."""
        weight = self.weights.take(f"{path}.weight", (self.shape.hidden_size,))
        return self._rms_norm(weight)

    def head_norm(self, at: str) -> RMSNorm:
        """q_norm and k_norm as one table, a row a head (QW3-1, GM3-4)."""
        heads = self.shape.heads
        query, key = (
            self.weights.take(f"{at}self_attn.{name}_norm.weight", (heads.dim,)) for name in "qk"
        )
        table = torch.cat((query.expand(heads.query, -1), key.expand(heads.kv, -1)))
        return self._rms_norm(table)

    def attention(
        self,
        layer: int,
        *,
        biased: bool,
        scale: float,
        norm: RMSNorm | None = None,
        window: int | None = None,
        rope: int = 0,
    ) -> Attention:
        """biased: config.json says that biases exist, so their absence is an error."""
        heads, hidden, at = self.shape.heads, self.shape.hidden_size, self.at(layer)
        query, kv = heads.query * heads.dim, heads.kv * heads.dim
        qkv = self.weights.linear(
            hidden,
            (f"{at}self_attn.q_proj", query),
            (f"{at}self_attn.k_proj", kv),
            (f"{at}self_attn.v_proj", kv),
            biased=biased,
        )
        output = self.weights.linear(query, (f"{at}self_attn.o_proj", hidden), biased=biased)
        attend = nn_attention.Attention(layer, scale, window)
        return Attention(qkv, output, heads, attend, norm=norm, rope=rope)

    def mlp(self, layer: int, activation: str, *, biased: bool = False) -> Mlp:
        hidden, inner, at = self.shape.hidden_size, self.shape.intermediate_size, self.at(layer)
        gate_up = self.weights.linear(
            hidden, (f"{at}mlp.gate_proj", inner), (f"{at}mlp.up_proj", inner), biased=biased
        )
        down = self.weights.linear(inner, (f"{at}mlp.down_proj", hidden), biased=biased)
        return Mlp(gate_up, down, GATED[activation])

    def _rms_norm(self, weight: Tensor) -> RMSNorm:
        kernels = self.weights.placement.kernels
        return RMSNorm(weight, self.shape.eps, shift=self.norm_shift, kernels=kernels)

    def pre_norm_block(self, layer: int, attention: Attention, mlp: Mlp) -> PreNormBlock:
        at = self.at(layer)
        mlp_norm = self.norm(f"{at}post_attention_layernorm")
        return PreNormBlock(self.norm(f"{at}input_layernorm"), attention, mlp_norm, mlp)

    def model(
        self,
        blocks: Sequence[Block],
        ropes: Sequence[RopeParameters],
        *,
        head: str,
        embedding_scale: float = 1.0,
        softcap: float | None = None,
    ) -> DenseModel:
        """The whole model around `blocks`. head: the path of the output projection."""
        embedding, unembedding = self._embedding_and_head(head)
        placement = self.weights.placement
        limits = [rope.max_context for rope in ropes if rope.max_context is not None]
        if limits:
            log.warning("dynamic rope: the context is limited to %d tokens", min(limits))
        return DenseModel(
            Parts(
                embedding,
                blocks,
                [Rope(rope, placement.device) for rope in ropes],
                self.norm(f"{self.prefix}norm"),
                unembedding,
                max_context=min([self.shape.max_context, *limits]),
                dtype=placement.dtype,
                device=placement.device,
                embedding_scale=embedding_scale,
                softcap=softcap,
            )
        )

    def _embedding_and_head(self, head: str) -> tuple[Embedding, Projection]:
        """The token table, and the output head at path `head` or tied to the table.

        A head that is shipped beside a tied table and differs from it is a mistake in config.json:
        the file is believed, as in transformers, and a warning says so (F01).
        """
        shape, weights = self.shape, self.weights
        table = f"{self.prefix}embed_tokens"
        tied = shape.tied
        if tied and f"{head}.weight" in weights:
            tied = weights.same(table, head)
            if tied:
                weights.skip(f"{head}.")
            else:
                log.warning("config.json ties the head, but %s.weight differs: it is used", head)
        embedding = weights.embedding(table, shape.vocab_size, shape.hidden_size)
        if tied:
            return embedding, embedding.as_linear()
        return embedding, weights.linear(shape.hidden_size, (head, shape.vocab_size))
