"""Llama and the many checkpoints that share its architecture, SmolLM2 among them (LLA, TEN-1)."""

from forerun.contract.model import TargetModel
from forerun.models.config import ConfigReader
from forerun.models.decoder_build import DecoderBuilder, read_shape, whole_head_rope
from forerun.models.weights import Weights
from forerun.nn.activation import GATED
from forerun.nn.layer_weights import LayerForm

DEFAULTS: dict[str, object] = {
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
CONTAINERS = ("", "language_model.")


def build(config: ConfigReader, weights: Weights) -> TargetModel:
    """The model that `config` describes."""
    config = config.text().with_defaults(DEFAULTS)
    shape = read_shape(config)
    activation = config.only("hidden_act", "silu", GATED)
    biased, mlp_biased = config.flag("attention_bias", False), config.flag("mlp_bias", False)
    container = weights.prefix("model.embed_tokens.weight", CONTAINERS)
    builder = DecoderBuilder(shape, weights, f"{container}model.")
    form = LayerForm(shape.heads.dim**-0.5, activation, biased=biased, mlp_biased=mlp_biased)
    layers = [builder.layer(layer, form) for layer in range(shape.layers)]
    rope = whole_head_rope(config, shape.heads.dim)
    return builder.model(layers, [rope], head=f"{container}lm_head")
