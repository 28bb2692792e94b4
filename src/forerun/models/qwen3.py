"""Qwen3, dense: llama with a norm on every query and key head (QW3, TEN-2)."""

from forerun.contract.model import TargetModel
from forerun.models.config import ConfigReader
from forerun.models.decoder_build import DecoderBuilder, read_shape, whole_head_rope
from forerun.models.weights import Weights
from forerun.nn.activation import GATED
from forerun.nn.layer_weights import LayerForm

DEFAULTS: dict[str, object] = {
    "head_dim": 128,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
}
CONTAINERS = ("model.", "")  # published embedding models were saved without their outer module


def build(config: ConfigReader, weights: Weights) -> TargetModel:
    """The model that `config` describes."""
    config = config.text().with_defaults(DEFAULTS)
    config.refuse("use_sliding_window")
    config.only_words("layer_types", ("full_attention",))
    shape = read_shape(config)
    activation = config.only("hidden_act", "silu", GATED)
    biased = config.flag("attention_bias", False)
    builder = DecoderBuilder(shape, weights, weights.prefix("embed_tokens.weight", CONTAINERS))
    form = LayerForm(shape.heads.dim**-0.5, activation, biased=biased, head_norms=True)
    layers = [builder.layer(layer, form) for layer in range(shape.layers)]
    return builder.model(layers, [whole_head_rope(config, shape.heads.dim)], head="lm_head")
