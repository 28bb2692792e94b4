"""A loaded model: what every request on it shares, as data."""

from dataclasses import dataclass, field

from forerun.contract.model import Caches, TargetModel
from forerun.engine.pooling import Pooling
from forerun.prefix.prefix_cache import PrefixCache
from forerun.sampling.sampler import Sampler
from forerun.speculation.bound import BoundDrafters


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Composed once, by a composition root, and used only in the device thread."""

    model: TargetModel
    caches: Caches
    prefix: PrefixCache  # over these caches and those of a drafter
    sampler: Sampler
    context: int  # tokens that prompt and answer may have together
    chunk: int  # prompt tokens of one forward at most (PRE-1)
    look_ahead: int  # tokens that the decoder runs ahead of the host: 0 or 1 (DEC-7)
    pooling: Pooling = field(default_factory=Pooling)  # of embeddings
    drafters: BoundDrafters = field(default_factory=BoundDrafters)

    @property
    def weight_bytes(self) -> int:
        """Storage of all parameters, those of the model's draft among them."""
        return self.model.facts.weight_bytes + self.drafters.weight_bytes
