"""What a config of the family says (QWN-2, QWN-4, TEN-3)."""

from dataclasses import dataclass

from forerun.base.errors import LoadError
from forerun.models.config import ConfigReader
from forerun.models.decoder_build import DecoderShape, read_shape, stated_kinds
from forerun.models.experts import ExpertShape, read_experts, sparse_layers
from forerun.nn.recurrence import DeltaHeads
from forerun.nn.rope import RopeParameters, from_config

DEFAULTS: dict[str, object] = {
    "decoder_sparse_step": 1,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 32768,
    "norm_topk_prob": True,
    "num_experts_per_tok": 1,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6,
    "rope_theta": 100000.0,
    "tie_word_embeddings": False,
}
INTERVAL = 4  # every so many layers there is one of attention


@dataclass(frozen=True, slots=True)
class HybridConfig:
    """A model's sizes, and which layer is what."""

    shape: DecoderShape
    activation: str
    biased: bool
    rope: RopeParameters
    attends: tuple[bool, ...]  # of each layer; the others are recurrent
    delta: DeltaHeads | None  # None: no layer is recurrent
    taps: int  # rows under the convolution
    experts: ExpertShape | None
    sparse: tuple[bool, ...]  # of each layer: it has experts


def read_hybrid(config: ConfigReader) -> HybridConfig:
    """Raises LoadError naming the field."""
    config = config.text().with_defaults(DEFAULTS)
    config.refuse("attn_output_gate", unless=(True,))
    config.refuse("use_sliding_window")
    activation = config.only("hidden_act", "silu", ("silu",))  # of the convolutions too
    experts, layers = read_experts(config, activation), config.integer("num_hidden_layers")
    sparse = sparse_layers(config, layers) if experts else (False,) * layers
    if experts is not None and all(sparse):  # then there is no MLP that would need it
        config = config.with_defaults({"intermediate_size": experts.inner})
    shape = read_shape(config)
    attends = layer_kinds(config, layers)
    return HybridConfig(
        shape=shape,
        activation=activation,
        biased=config.flag("attention_bias", False),
        rope=from_config(config.merged(), shape.heads.dim),
        attends=attends,
        delta=None if all(attends) else _delta_heads(config),
        taps=config.integer("linear_conv_kernel_dim"),
        experts=experts,
        sparse=sparse,
    )


def layer_kinds(config: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Whether each layer attends."""
    kinds = stated_kinds(config, layers)
    if kinds is None:
        interval = config.integer("full_attention_interval", INTERVAL)
        return tuple((layer + 1) % interval == 0 for layer in range(layers))
    for kind in kinds:
        if "full" not in kind and "linear" not in kind:
            raise LoadError(
                f"config.json: layer_types names {kind!r}; served are full_attention and "
                "linear_attention"
            )
    return tuple("full" in kind for kind in kinds)


def _delta_heads(config: ConfigReader) -> DeltaHeads:
    keys, values = (config.integer(f"linear_num_{part}_heads") for part in ("key", "value"))
    if values % keys:
        raise LoadError(
            f"config.json: linear_num_key_heads {keys} does not divide linear_num_value_heads "
            f"{values}"
        )
    return DeltaHeads(
        key_heads=keys,
        value_heads=values,
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
    )
