"""The model of the family, its text part alone where it is wrapped with a vision tower (QWN-1)."""

from forerun.base.errors import LoadError
from forerun.contract.model import TargetModel
from forerun.models.config import ConfigReader
from forerun.models.decoder import DecoderModel
from forerun.models.decoder_build import DecoderBuilder
from forerun.models.qwen3_5.config import read_hybrid
from forerun.models.qwen3_5.mtp import build_head
from forerun.models.qwen3_5.tensors import HybridBuilder, zero_centred
from forerun.models.weights import Weights

ARCHITECTURES = tuple(
    f"{family}{part}For{task}"
    for family in ("Qwen3_5", "Qwen3Next")
    for part in ("", "Moe")
    for task in ("CausalLM", "ConditionalGeneration")
)

# Where the text model lies (QWN-3), and beside it the head.
CONTAINERS = {
    "model.": ("lm_head",),
    "language_model.model.": ("language_model.lm_head", "lm_head"),
    "language_model.": ("language_model.lm_head", "lm_head"),
    "model.language_model.model.": ("model.language_model.lm_head", "lm_head"),
    "model.language_model.": ("lm_head", "model.lm_head"),
}
TOWERS = ("vision_tower.", "model.visual.", "visual.")


def build(config: ConfigReader, weights: Weights) -> TargetModel:
    """The model that `config` describes."""
    hybrid = read_hybrid(config)
    check_tower(config, weights)
    shift = zero_centred(weights)
    weights.skip(*TOWERS)
    prefix = weights.prefix("embed_tokens.weight", tuple(CONTAINERS))
    builder = DecoderBuilder(hybrid.shape, weights, prefix, norm_shift=shift)
    layers = HybridBuilder(hybrid, builder)
    parts = builder.parts(layers.layers(), [hybrid.rope], head=_head(weights, prefix))
    return DecoderModel(parts, build_head(config, layers, parts))


def check_tower(config: ConfigReader, weights: Weights) -> None:
    """QWN-14. Images are refused, but half a tower is a broken checkpoint all the same."""
    vision = config.section("vision_config")
    tensors = [name for name in weights.surplus if name.startswith(TOWERS)]
    if vision is None and tensors:
        raise LoadError(
            f"the checkpoint has {tensors[0]} and config.json no vision_config; import it again "
            "from a folder in which both are complete"
        )
    if vision is None:
        return
    if not tensors:
        raise LoadError(
            f"config.json has a vision_config and the checkpoint no tensor under "
            f"{', '.join(TOWERS)}; import it again from a folder in which both are complete"
        )
    if vision.integers("deepstack_visual_indexes"):
        raise LoadError(
            "config.json sets vision_config.deepstack_visual_indexes, which is not implemented"
        )


def _head(weights: Weights, prefix: str) -> str:
    paths = CONTAINERS[prefix]
    return next((path for path in paths if f"{path}.weight" in weights), paths[0])
