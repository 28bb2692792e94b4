"""What the config of an EAGLE-3 head says, in either published layout (spec 03 EGL-2, EGL-3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forerun.base.errors import LoadError
from forerun.models.config import ConfigReader, Fields
from forerun.models.decoder_build import DecoderShape, read_shape, whole_head_rope
from forerun.nn.rope import RopeParameters

ORIGINAL = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
SPECULATORS = ("Eagle3Speculator", "Eagle3DraftModel")
ARCHITECTURES = (*ORIGINAL, *SPECULATORS)
TAPS = "eagle_aux_hidden_state_layer_ids"
LEAST_LAYERS = 7  # of a target whose default taps differ
_REMEDY = "give it its own head, or say with PARAMETER draft_layers which layers this one reads"

_COMMON: dict[str, object] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "num_attention_heads": 32,
    "hidden_size": 4096,
    "tie_word_embeddings": False,
}
# What a config leaves out: writers of the speculators layout drop what the class has by default.
DEFAULTS: dict[str, dict[str, object]] = {
    "llama": {
        **_COMMON,
        "vocab_size": 32000,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
    },
    "qwen3": {
        **_COMMON,
        "vocab_size": 151936,
        "intermediate_size": 22016,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "head_dim": 128,
    },
}


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """One head."""

    shape: DecoderShape  # of its layers; `vocab_size` is the target's
    rope: RopeParameters
    draft_vocabulary: int
    target_hidden_size: int
    taps: tuple[int, ...]  # layers that the streams have passed; empty: not stated
    head_norms: bool  # of queries and keys (qwen3)
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool


def read_config(fields: Fields) -> Eagle3Config:
    """LoadError names the field that is missing, strange or not served."""
    top = ConfigReader(fields)
    speculators = top.has("speculators_model_type")
    if speculators:
        top.only("speculators_model_type", "", ("eagle3",))
    _check_architecture(top, SPECULATORS if speculators else ORIGINAL)
    layers = _layer_fields(top) if speculators else top
    kind = layers.only("model_type", "llama", tuple(DEFAULTS))
    layers = layers.with_defaults(DEFAULTS[kind])
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        layers.refuse(name)
    layers.only_words("layer_types", ("full_attention",))
    layers.only("hidden_act", "silu", ("silu",))
    shape = read_shape(layers)
    flags = {
        name: top.flag(name, False)
        for name in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    }
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise LoadError("config.json sets both norm_before_fc and fc_norm; a head has one of them")
    return Eagle3Config(
        shape=shape,
        rope=whole_head_rope(layers, shape.heads.dim),
        draft_vocabulary=top.integer("draft_vocab_size", shape.vocab_size),
        target_hidden_size=top.integer("target_hidden_size", shape.hidden_size),
        taps=_stated_taps(top),
        head_norms=kind == "qwen3",
        **flags,
    )


def asked_taps(
    parameters: Mapping[str, object], architecture: str | None
) -> tuple[int, ...] | None:
    """What PARAMETER draft_layers has a head read, whatever its config says (EGL-3).

    architecture  of the model's draft, None where it has none

    LoadError where that is no head of this kind.
    """
    stated = parameters.get("draft_layers")
    if not isinstance(stated, str):
        return None
    if architecture not in ARCHITECTURES:
        raise LoadError(
            f"PARAMETER draft_layers {stated} is for an EAGLE-3 head, which this model has not; "
            "create it without that line"
        )
    return tuple(map(int, stated.split(",")))


def resolve_taps(stated: Sequence[int], layers: int) -> tuple[int, ...]:
    """In the order in which `fc` takes them, the default ones where none are stated.

    stated   as streams after so many layers
    layers   of the target
    """
    taps = tuple(sorted(stated))
    if not taps:
        if layers < LEAST_LAYERS:
            raise LoadError(
                f"the draft head names no layers ({TAPS}), and a model of {layers} layers has "
                f"no default ones; {_REMEDY}"
            )
        taps = 2, layers // 2, layers - 3
    wrong = [tap for tap in taps if not 0 <= tap <= layers]
    if wrong:
        raise LoadError(
            f"the draft head reads the stream after layer {wrong[0]}, and the model has {layers} "
            f"layers; {_REMEDY}"
        )
    if len(set(taps)) < len(taps):
        raise LoadError(f"the draft head reads a stream twice: after layers {_listed(taps)}")
    return taps


def _check_architecture(top: ConfigReader, served: Sequence[str]) -> None:
    named = top.words("architectures")
    if not named or named[0] not in served:
        raise LoadError(
            f"config.json names the architectures {_listed(named or ())}; an EAGLE-3 head in this "
            f"layout is {' or '.join(served)}"
        )


def _layer_fields(top: ConfigReader) -> ConfigReader:
    """`transformer_layer_config` alone: fields around it are of other things."""
    name = "transformer_layer_config"
    nested = top.section(name)
    if nested is None:
        raise LoadError(f"config.json has no {name}; it must be an object")
    if not nested.fields.get("model_type"):
        raise LoadError(f"config.json has no {name}.model_type; it must be llama or qwen3")
    return ConfigReader(nested.fields, nested.place)


def _stated_taps(top: ConfigReader) -> tuple[int, ...]:
    """At the top level an id is that of the layer entered, in `eagle_config` of the one left."""
    entered = top.integers(TAPS)
    if entered:
        return entered
    nested = top.section("eagle_config")
    if nested is None:
        return ()
    nested.refuse("use_aux_hidden_state", unless=(True,))
    left = ConfigReader(nested.fields, nested.place).integers(TAPS)
    return tuple(layer + 1 for layer in left or ())


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "(none)"
