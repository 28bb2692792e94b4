"""Where an architecture's policy is not the default one (spec 07 POA).

A rule answers for the tensors it has an opinion on; None leaves a tensor to the default policy.
Architectures stand here before they are served: a table is all that they need.
"""

from collections.abc import Callable

from forerun.importer.policy.default import Asked, more_bits, raised, scheduled
from forerun.importer.policy.kinds import SOURCE
from forerun.importer.policy.weight import WeightRole

Rule = Callable[[WeightRole, Asked], str | None]

_ATTENTION = (".q_proj", ".k_proj", ".v_proj", ".o_proj")


def qwen3_5(weight: WeightRole, asked: Asked) -> str | None:
    """POA-1: what decides decay and beta of a linear layer."""
    del asked
    gates = ("linear_attn.in_proj_a", "linear_attn.in_proj_b")  # in_proj_ba among them
    return SOURCE if weight.has(*gates) else None


def gemma4(weight: WeightRole, asked: Asked) -> str | None:
    """POA-2."""
    if weight.is_table:
        return weight.first_fit(asked.eight_bit, asked.kind)
    if weight.stays or not weight.is_sensitive:
        return None
    key_or_value = weight.has(".k_proj", ".v_proj")
    if asked.experts == 8 and key_or_value:  # few heads share them, and errors add up
        return raised(weight, asked)
    if weight.has(".k_proj"):
        return weight.first_fit(asked.kind)
    return scheduled(weight, asked)


def cohere2_moe(weight: WeightRole, asked: Asked) -> str | None:
    """POA-3."""
    if weight.is_table:
        return weight.first_fit(asked.eight_bit)
    if weight.stays or not weight.is_sensitive:
        return None
    return scheduled(weight, asked)


def glimmer(weight: WeightRole, asked: Asked) -> str | None:
    """POA-4."""
    if weight.is_table:
        return weight.first_fit(asked.eight_bit)
    if weight.stays:
        return None
    if weight.has(*_ATTENTION):
        return weight.first_fit(asked.eight_bit, asked.kind)
    return scheduled(weight, asked) if weight.has("gate_proj", "down_proj") else None


def laguna(weight: WeightRole, asked: Asked) -> str | None:
    """POA-5. Gate and up of experts go with those of a dense MLP."""
    if asked.affine:
        return None
    if weight.is_table or weight.is_head:
        return weight.first_fit(asked.eight_bit)
    if weight.stays:
        return SOURCE
    if weight.has(*_ATTENTION, ".g_proj"):
        return SOURCE if asked.kind == "mxfp8" else weight.first_fit(asked.kind)
    if weight.has("down_proj") and weight.has("expert"):
        return _laguna_down(weight, asked)
    if weight.has("gate_proj", "up_proj", "down_proj"):
        return weight.first_fit(asked.kind)
    return SOURCE


def _laguna_down(weight: WeightRole, asked: Asked) -> str:
    if asked.kind == "mxfp8" and weight.has("shared_expert"):
        return SOURCE
    layer = weight.layer
    early = layer is not None and layer < asked.layers // 2 - 4
    if layer is not None and early and more_bits(layer, asked.layers):
        return weight.first_fit(asked.eight_bit, asked.kind)
    return weight.first_fit(asked.kind)


def nemotron_h(weight: WeightRole, asked: Asked) -> str | None:
    """POA-6."""
    if weight.has("vision_model", "mlp1", "sound_"):
        return SOURCE
    if weight.is_table or weight.is_head:
        return weight.first_fit(asked.eight_bit)
    if weight.stays or not asked.single_mode:
        return None
    if weight.has(*_ATTENTION):
        return weight.first_fit(asked.eight_bit, asked.kind)
    return scheduled(weight, asked) if weight.has("out_proj", "down_proj") else None


# By what occurs in the architecture's name, without case and punctuation.
FAMILIES: dict[str, Rule] = {
    "qwen35": qwen3_5,
    "qwen3next": qwen3_5,
    "gemma4": gemma4,
    "cohere2moe": cohere2_moe,
    "glimmer": glimmer,
    "laguna": laguna,
    "nemotronh": nemotron_h,
}


def rule_for(architecture: str) -> Rule | None:
    """The family's own rule; None where the default policy is all there is."""
    plain = "".join(letter for letter in architecture.lower() if letter.isalnum())
    return next((rule for part, rule in FAMILIES.items() if part in plain), None)
