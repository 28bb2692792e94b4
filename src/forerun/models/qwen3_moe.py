"""Qwen3 with a mixture of experts instead of the MLP in most layers (Q3M, TEN-2)."""

from forerun.contract.model import TargetModel
from forerun.models import qwen3
from forerun.models.config import ConfigReader
from forerun.models.decoder_build import DecoderBuilder, read_shape, whole_head_rope
from forerun.models.experts import pick_experts, read_experts, sparse_layers
from forerun.models.weights import Weights
from forerun.nn.activation import GATED
from forerun.nn.layer_weights import LayerForm

DEFAULTS: dict[str, object] = {
    **qwen3.DEFAULTS,
    "decoder_sparse_step": 1,
    "norm_topk_prob": False,
    "num_experts_per_tok": 8,
}
EXPERTS = 128
CONTAINERS = ("model.", "")


def build(config: ConfigReader, weights: Weights) -> TargetModel:
    """The model that `config` describes."""
    config = config.text().with_defaults(DEFAULTS)
    if not config.has("num_local_experts"):  # the other name of the same field
        config = config.with_defaults({"num_experts": EXPERTS})
    config.refuse("use_sliding_window")
    config.only_words("layer_types", ("full_attention",))
    shape = read_shape(config)
    activation = config.only("hidden_act", "silu", GATED)
    experts = read_experts(config, activation, shared=False)
    sparse = sparse_layers(config, shape.layers)
    builder = DecoderBuilder(shape, weights, weights.prefix("embed_tokens.weight", CONTAINERS))
    biased = config.flag("attention_bias", False)
    form = LayerForm(shape.heads.dim**-0.5, activation, biased=biased, head_norms=True)
    layers = [
        builder.layer(
            layer,
            form,
            pick_experts(weights, f"{builder.at(layer)}mlp.", experts, shape.hidden_size)
            if experts is not None and sparse[layer]
            else None,
        )
        for layer in range(shape.layers)
    ]
    return builder.model(layers, [whole_head_rope(config, shape.heads.dim)], head="lm_head")
