"""What a tensor's name and shape tell about its part in a model."""

import re
from dataclasses import dataclass
from math import prod

from forerun.importer.policy.kinds import SOURCE, fits

SMALLEST = 1024  # fewer elements are not worth a scale

# Embeddings, norms and whole media towers, by what occurs in their names (POL-1, POL-2); conv
# weights, also where they are stored as matrices (POA-7).
_KEPT = ("embed", "norm", "ln_", "audio_tower", "vision", "visual", "conv")
_GATES = (".mlp.gate.weight", ".mixer.gate.weight", ".shared_expert_gate.weight")
_ROUTERS = (*_GATES, ".router.proj.weight")
_SENSITIVE = (".v_proj", ".k_proj", "down_proj")
_STACKED = re.compile(r".*\.(experts|switch_mlp)\.\w+_proj(\.weight)?")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class WeightRole:
    """One tensor of a model, by name and shape. Per-expert weights come as their stack."""

    name: str
    shape: tuple[int, ...]

    @property
    def stays(self) -> bool:
        """Whether it keeps the source's precision by default (POL-1, POL-2, POA-7)."""
        return (
            any(part in self.name for part in _KEPT)
            or self.is_router
            or not self.is_matrix
            or prod(self.shape) < SMALLEST
        )

    @property
    def is_matrix(self) -> bool:
        """A linear's weight, or a stack of experts' (which may lack `.weight`)."""
        if self.is_stack:
            return True
        return self.name.endswith(".weight") and len(self.shape) == 2

    @property
    def is_stack(self) -> bool:
        return len(self.shape) == 3 and _STACKED.fullmatch(self.name) is not None

    @property
    def is_router(self) -> bool:
        return self.name.endswith(_ROUTERS)

    @property
    def is_head(self) -> bool:
        return self.ends("lm_head.weight")

    @property
    def is_table(self) -> bool:
        """The token embedding."""
        return self.ends("embed_tokens.weight", "backbone.embeddings.weight")

    @property
    def is_sensitive(self) -> bool:
        """What errors in hurt most (POL-5)."""
        return any(part in self.name for part in _SENSITIVE)

    @property
    def layer(self) -> int | None:
        found = _LAYER.search(self.name)
        return None if found is None else int(found[1])

    def ends(self, *names: str) -> bool:
        """Whether the name is one of `names`, below any prefix."""
        return any(self.name == name or self.name.endswith(f".{name}") for name in names)

    def has(self, *parts: str) -> bool:
        return any(part in self.name for part in parts)

    def first_fit(self, *kinds: str) -> str:
        """The first of `kinds` whose groups make up its rows, else SOURCE (POL-4)."""
        columns = self.shape[-1]
        return next((kind for kind in kinds if fits(columns, kind)), SOURCE)
