"""Building a model from a checkpoint: the fields and tensors that families have in common."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from forerun.base.errors import LoadError
from forerun.base.logs import logger
from forerun.models.blocks import (
    Attention,
    Block,
    FeedForward,
    GatedDeltaMixer,
    Mixer,
    Mlp,
    PreNormBlock,
    SandwichBlock,
)
from forerun.models.config import ConfigReader
from forerun.models.decoder import Blocks, DecoderModel, Parts, Stack
from forerun.models.layer_caches import NewCache, Storage
from forerun.models.weights import Weights
from forerun.nn import attention as nn_attention
from forerun.nn.activation import GATED
from forerun.nn.embedding import Embedding
from forerun.nn.experts import Experts
from forerun.nn.fused_layers import fused_layers
from forerun.nn.layer_weights import (
    AttentionWeights,
    DeltaWeights,
    ExpertWeights,
    Heads,
    LayerForm,
    LayerNorms,
    LayerWeights,
    MlpWeights,
)
from forerun.nn.linear import Linear, stack_parts
from forerun.nn.norm import RMSNorm
from forerun.nn.rope import Rope, RopeParameters, from_config

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The fields of config.json that every family has."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: Heads
    eps: float
    max_context: int
    tied: bool


def read_shape(config: ConfigReader) -> DecoderShape:
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
    return DecoderShape(
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        layers=config.integer("num_hidden_layers"),
        heads=Heads(query, kv, head_dim),
        eps=config.number("rms_norm_eps"),
        max_context=config.integer("max_position_embeddings"),
        tied=config.flag("tie_word_embeddings"),
    )


def stated_kinds(config: ConfigReader, layers: int) -> tuple[str, ...] | None:
    """`layer_types`, a word a layer; None where the config leaves it out."""
    kinds = config.words("layer_types")
    if kinds is not None and len(kinds) != layers:
        raise LoadError(
            f"config.json: layer_types names {len(kinds)} layers and num_hidden_layers is {layers}"
        )
    return kinds


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
class DecoderBuilder:
    """Makes a family's layers out of the tensors under one prefix."""

    shape: DecoderShape
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

    def layer(
        self, index: int, form: LayerForm, experts: ExpertWeights | None = None
    ) -> LayerWeights:
        """The tensors of one layer, of which nothing has been made yet.

        experts  what feeds forward instead of an MLP
        """
        shape, at = self.shape, self.at(index)
        query, output = shape.heads.query * shape.heads.dim, f"{at}self_attn.o_proj"
        return LayerWeights(
            index=index,
            epsilon=shape.eps,
            mixer=self.attention_weights(at, form),
            output=self.weights.pick(query, (output, shape.hidden_size), biased=form.biased),
            feed_forward=experts or self.mlp_weights(at, form),
            norms=self.norms(at, form),
        )

    def attention_weights(self, at: str, form: LayerForm) -> AttentionWeights:
        """Without the output projection. at: "model.layers.3."."""
        heads, pick = self.shape.heads, self.weights.pick
        sizes = {"q": heads.query * heads.dim, "k": heads.kv * heads.dim, "v": heads.kv * heads.dim}
        qkv = [(f"{at}self_attn.{name}_proj", rows) for name, rows in sizes.items()]
        return AttentionWeights(
            heads=heads,
            scale=form.scale,
            window=form.window,
            rope=form.rope,
            rotary_dim=form.rotary_dim,
            norm=self.head_norm(at) if form.head_norms else None,
            qkv=pick(self.shape.hidden_size, *qkv, biased=form.biased),
            gate=[],
        )

    def mlp_weights(self, at: str, form: LayerForm) -> MlpWeights:
        hidden, inner, pick = (
            self.shape.hidden_size,
            self.shape.intermediate_size,
            self.weights.pick,
        )
        gate_up = (f"{at}mlp.gate_proj", inner), (f"{at}mlp.up_proj", inner)
        return MlpWeights(
            form.activation,
            gate_up=pick(hidden, *gate_up, biased=form.mlp_biased),
            down=pick(inner, (f"{at}mlp.down_proj", hidden), biased=form.mlp_biased),
        )

    def norms(self, at: str, form: LayerForm) -> LayerNorms:
        """With outer norms, the name that is otherwise the MLP's is that of the first of them."""
        after_attention = self.norm(f"{at}post_attention_layernorm")
        outer = form.outer_norms
        return LayerNorms(
            input=self.norm(f"{at}input_layernorm"),
            attended=after_attention if outer else None,
            mlp=self.norm(f"{at}pre_feedforward_layernorm") if outer else after_attention,
            output=self.norm(f"{at}post_feedforward_layernorm") if outer else None,
        )

    def _rms_norm(self, weight: Tensor, *, uniform: bool = False) -> RMSNorm:
        kernels, shift = self.weights.placement.kernels, self.norm_shift
        return RMSNorm(weight, self.shape.eps, shift=shift, uniform=uniform, kernels=kernels)

    def attention(self, layer: LayerWeights) -> Attention:
        """Of separate operations."""
        mixer, projection = layer.mixer, self.weights.projection
        assert isinstance(mixer, AttentionWeights), "this layer has attention"
        return Attention(
            projection(mixer.qkv),
            projection(layer.output),
            mixer.heads,
            nn_attention.Attention(layer.index, mixer.scale, mixer.window),
            norm=mixer.norm,
            rope=mixer.rope,
            gate=projection(mixer.gate) if mixer.gate else None,
        )

    def mlp(self, mlp: MlpWeights) -> Mlp:
        """Of separate operations."""
        projection = self.weights.projection
        return Mlp(projection(mlp.gate_up), projection(mlp.down), GATED[mlp.activation])

    def experts(self, part: ExpertWeights) -> Experts:
        """Of separate operations: a linear an expert, of its rows of the stacks."""
        gate_up, down = (stack_parts(stack, part.experts) for stack in (part.gate_up, part.down))
        return Experts(
            part.router,
            [
                self.mlp(MlpWeights(part.activation, [first], [second]))
                for first, second in zip(gate_up, down, strict=True)
            ],
            part.top,
            renormalised=part.renormalised,
            shared=None if part.shared is None else self.mlp(part.shared),
            shared_gate=part.shared_gate,
        )

    def block(self, layer: LayerWeights) -> Block:
        """A block of separate operations."""
        norms, mixer, rest = layer.norms, self._mixer(layer), self._feed_forward(layer)
        if norms.attended is None or norms.output is None:
            return PreNormBlock(norms.input, mixer, norms.mlp, rest)
        return SandwichBlock(norms.input, mixer, norms.attended, norms.mlp, rest, norms.output)

    def _mixer(self, layer: LayerWeights) -> Mixer:
        mixer, projection = layer.mixer, self.weights.projection
        if isinstance(mixer, AttentionWeights):
            return self.attention(layer)
        inputs, output = projection(mixer.inputs), projection(layer.output)
        return GatedDeltaMixer(layer.index, mixer, inputs, output)

    def _feed_forward(self, layer: LayerWeights) -> FeedForward:
        part = layer.feed_forward
        return self.mlp(part) if isinstance(part, MlpWeights) else self.experts(part)

    def stack(self, layers: list[LayerWeights], *, fuse: bool = True) -> Stack:
        """All layers in one call where that can be, or as separate operations.

        layers  empty afterwards, so that sources go one by one (LIN-12)
        fuse    False beside layers that run on PyTorch's threads
        """
        placement = self.weights.placement
        if fuse:
            fused = fused_layers(layers, placement.dtype, placement.kernels)
            if fused is not None:
                return fused
        self.weights.settle(linear for layer in layers for linear in layer.linears)
        own_threads = self.weights.placement.kernels.own_threads
        blocks = [self.block(layers.pop(0)) for _ in range(len(layers))]
        return Blocks(blocks, placement.dtype, own_threads=own_threads)

    def caches(
        self, mixers: Sequence[AttentionWeights | DeltaWeights], stack: Stack
    ) -> list[NewCache]:
        """What makes the cache of each layer of a stack, by what it mixes with."""
        placement = self.weights.placement
        storage = Storage(placement.dtype, stack.stream, placement.device, stack.fold)
        return [storage.of(mixer) for mixer in mixers]

    def model(
        self,
        layers: list[LayerWeights],
        ropes: Sequence[RopeParameters],
        *,
        head: str,
        embedding_scale: float = 1.0,
        softcap: float | None = None,
    ) -> DecoderModel:
        """The whole model around `layers`. head: the path of the output projection."""
        parts = self.parts(layers, ropes, head=head)
        return DecoderModel(replace(parts, embedding_scale=embedding_scale, softcap=softcap))

    def parts(
        self, layers: list[LayerWeights], ropes: Sequence[RopeParameters], *, head: str
    ) -> Parts:
        """What such a model is made of."""
        placement, mixers = self.weights.placement, [layer.mixer for layer in layers]
        stack = self.stack(layers)
        embedding, unembedding = self._embedding_and_head(head, stack)
        limits = [rope.max_context for rope in ropes if rope.max_context is not None]
        if limits:
            log.warning("dynamic rope: the context is limited to %d tokens", min(limits))
        return Parts(
            embedding,
            stack,
            self.caches(mixers, stack),
            [Rope(rope, placement.device) for rope in ropes],
            self._final_norm(uniform=stack.own_threads),
            unembedding,
            max_context=min([self.shape.max_context, *limits]),
            dtype=placement.dtype,
            device=placement.device,
        )

    def _final_norm(self, *, uniform: bool) -> RMSNorm:
        """Of fused layers it is as indifferent to the rows beside a row as they are."""
        weight = self.weights.take(f"{self.prefix}norm.weight", (self.shape.hidden_size,))
        return self._rms_norm(weight, uniform=uniform)

    def _embedding_and_head(self, head: str, stack: Stack) -> tuple[Embedding, Linear]:
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
        rows, hidden = shape.vocab_size, shape.hidden_size
        embedding = weights.embedding(table, rows, hidden, stack.stream)
        if tied:
            return embedding, embedding.as_linear(fused=stack.own_threads)
        return embedding, weights.head(
            hidden, head, rows, dtype=stack.stream, fused=stack.own_threads
        )
