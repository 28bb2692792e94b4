"""Gemma 3, text only: norms around every part, sliding and full layers, two rotary bases (GM3)."""

import torch

from forerun.base.errors import LoadError
from forerun.contract.model import TargetModel
from forerun.models.config import ConfigReader
from forerun.models.decoder_build import DecoderBuilder, read_shape, stated_kinds, whole_head_rope
from forerun.models.weights import Weights
from forerun.nn.activation import GATED
from forerun.nn.layer_weights import LayerForm
from forerun.nn.rope import RopeParameters

FULL, SLIDING = "full_attention", "sliding_attention"

DEFAULTS: dict[str, object] = {
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
LOCAL_THETA = 10000.0

# where the text model lies, and where its head does (GM3-8)
CONTAINERS = {
    "model.": "lm_head",
    "language_model.model.": "language_model.lm_head",
    "model.language_model.": "lm_head",
}
TOWERS = tuple(
    f"{container}{part}."
    for container in ("", "model.")
    for part in ("vision_tower", "multi_modal_projector")
)


def build(config: ConfigReader, weights: Weights) -> TargetModel:
    """The text model that `config` describes; a vision tower's tensors are left where they are."""
    config = config.text().with_defaults(DEFAULTS)
    config.refuse("attn_logit_softcapping", unless=())
    shape = read_shape(config)
    activation = config.only("hidden_activation", "gelu_pytorch_tanh", GATED)
    weights.skip(*TOWERS)
    prefix = weights.prefix("embed_tokens.weight", tuple(CONTAINERS))
    builder = DecoderBuilder(shape, weights, prefix, norm_shift=True)
    scale, window = config.number("query_pre_attn_scalar") ** -0.5, config.integer("sliding_window")
    biased = config.flag("attention_bias", False)
    layers = [
        builder.layer(
            layer,
            LayerForm(
                scale=scale,
                activation=activation,
                biased=biased,
                head_norms=True,
                outer_norms=True,
                window=window if kind == SLIDING else None,
                rope=(FULL, SLIDING).index(kind),
            ),
        )
        for layer, kind in enumerate(layer_kinds(config, shape.layers))
    ]
    return builder.model(
        layers,
        ropes(config, shape.heads.dim),
        head=CONTAINERS[prefix],
        # rounded to the dtype of the embedding first, as the model was trained (GM3-3)
        embedding_scale=torch.tensor(shape.hidden_size**0.5, dtype=weights.placement.dtype).item(),
        softcap=config.optional_number("final_logit_softcapping"),
    )


def layer_kinds(config: ConfigReader, layers: int) -> tuple[str, ...]:
    """Full or sliding, a layer (GM3-2)."""
    config.only_words("layer_types", (FULL, SLIDING))
    kinds = stated_kinds(config, layers)
    if kinds is not None:
        return kinds
    pattern = config.integer("sliding_window_pattern", 6)
    return tuple(FULL if (layer + 1) % pattern == 0 else SLIDING for layer in range(layers))


def ropes(config: ConfigReader, head_dim: int) -> tuple[RopeParameters, RopeParameters]:
    """Of full and of sliding layers; older configs scale only the former (GM3-6)."""
    fields = config.merged()
    local: dict[str, object] = {"rope_theta": config.number("rope_local_base_freq", LOCAL_THETA)}
    nested = config.section("rope_parameters")
    if nested is not None:
        if not set(nested.fields) <= {FULL, SLIDING}:
            raise LoadError(
                f"config.json sets rope_parameters to {dict(nested.fields)!r}; it must hold "
                f"{FULL} and {SLIDING}"
            )
        fields["rope_parameters"] = nested.fields.get(FULL)
        local["rope_parameters"] = nested.fields.get(SLIDING)
    return (
        whole_head_rope(ConfigReader(fields), head_dim),
        whole_head_rope(ConfigReader(local), head_dim),
    )
