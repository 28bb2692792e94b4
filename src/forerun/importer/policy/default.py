"""The policy of a model that needs no other (spec 07 POL)."""

from dataclasses import dataclass

from forerun.importer.policy.kinds import SOURCE, eight_bit
from forerun.importer.policy.weight import WeightRole


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, and the facts about the model that policies go by."""

    kind: str  # one of kinds.GROUPS
    architecture: str = ""  # as config.json calls it
    layers: int = 0
    experts: int = 0  # routed experts a layer
    draft: bool = False  # whether the model is another one's draft
    tied: bool = False  # whether its token embedding is its output head as well

    @property
    def eight_bit(self) -> str:
        return eight_bit(self.kind)

    @property
    def affine(self) -> bool:
        return self.kind in ("int4", "int8")

    @property
    def single_mode(self) -> bool:
        """Whether a layer's experts share one type: the kernels for these take no two (POL-5)."""
        return self.kind in ("nvfp4", "mxfp4")


def default_kind(weight: WeightRole, asked: Asked) -> str:
    """POL-1 to POL-5."""
    if weight.is_table and asked.tied and asked.affine:
        return weight.first_fit(asked.eight_bit)  # as a head (POL-3)
    if weight.stays:
        return SOURCE
    if weight.is_head:
        return weight.first_fit(asked.eight_bit)
    if weight.is_sensitive:
        return raised(weight, asked)
    return weight.first_fit(asked.kind)


def raised(weight: WeightRole, asked: Asked) -> str:
    """The 8-bit type where the weight can have it, else the type asked for."""
    if weight.is_stack and asked.single_mode:
        return weight.first_fit(asked.kind)
    return weight.first_fit(asked.eight_bit, asked.kind)


def scheduled(weight: WeightRole, asked: Asked) -> str:
    """8 bits in the layers that get more of them, else the type asked for."""
    if weight.layer is not None and more_bits(weight.layer, asked.layers):
        return raised(weight, asked)
    return weight.first_fit(asked.kind)


def more_bits(layer: int, layers: int) -> bool:
    """POL-6: the first and last eighth, and every third layer between them."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
