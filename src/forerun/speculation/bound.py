"""The drafters that are bound to a loaded model, and which of them a request uses (DRF-8)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from forerun.base.errors import RequestError
from forerun.contract.drafter import Drafter
from forerun.contract.model import Caches
from forerun.speculation.contest import Contest
from forerun.speculation.costs import Costs
from forerun.speculation.depth import DepthController
from forerun.speculation.round_clock import PartCosts

AUTO, OFF = "auto", "off"  # what a request may always say
MODEL = "model"  # the name of a primary drafter, of whatever kind


@dataclass(frozen=True, slots=True)
class BoundDrafters:
    """Fixed at load. Without any, every request is decoded plainly (GEN-1)."""

    primary: Drafter | None = None  # the model's own draft
    lookup: Drafter | None = None
    # of each drafter by its name, by grade of what it proposes
    controllers: Mapping[str, Sequence[DepthController]] = field(default_factory=dict)
    contests: Sequence[Contest] = ()  # primary against lookup, by grade of the latter
    part_costs: PartCosts = field(default_factory=PartCosts)
    weight_bytes: int = 0  # storage of the primary's own parameters

    @classmethod
    def of(
        cls,
        primary: Drafter | None = None,
        lookup: Drafter | None = None,
        *,
        weight_bytes: int = 0,
    ) -> "BoundDrafters":
        """With depth controllers for each, which live as long as they do (DEP-7, DEP-11)."""
        bound = [drafter for drafter in (primary, lookup) if drafter is not None]
        owners = [drafter.name for drafter in bound if drafter.caches]
        assert len(owners) < 2, f"{owners} own caches; one drafter at most may"
        controllers = {drafter.name: _controllers(drafter) for drafter in bound}
        assert len(controllers) == len(bound), f"two drafters are called {bound[0].name}"
        contests = [Contest() for _ in range(lookup.grades)] if primary and lookup else ()
        return cls(primary, lookup, controllers, contests, weight_bytes=weight_bytes)

    @property
    def all(self) -> tuple[Drafter, ...]:
        return tuple(drafter for drafter in (self.primary, self.lookup) if drafter is not None)

    def choices(self) -> tuple[str, ...]:
        """What a request may ask for."""
        return (AUTO, *self.controllers, OFF)

    def chosen(self, wanted: str) -> tuple[Drafter, ...]:
        """The drafters that a request uses. RequestError: not bound."""
        if wanted == OFF:
            return ()
        if wanted == AUTO:
            return self.all
        for drafter in self.all:
            if drafter.name == wanted:
                return (drafter,)
        raise RequestError(f"draft is {wanted!r}; this model offers {', '.join(self.choices())}")

    @property
    def owner(self) -> Drafter | None:
        """The one that owns caches: it follows every session, drafting or not (GEN-3)."""
        return next((drafter for drafter in self.all if drafter.caches), None)

    @property
    def caches(self) -> Caches:
        """Its caches, which ride in the prefix cache behind the target's."""
        owner = self.owner
        return () if owner is None else owner.caches

    @property
    def look_ahead(self) -> Literal[0, 1]:
        """1 where they hold pairs (02 KEY-4)."""
        owner = self.owner
        return 1 if owner is not None and owner.look_ahead else 0


def _controllers(drafter: Drafter) -> Sequence[DepthController]:
    """One for each grade. What a round costs does not depend on it."""
    costs = Costs()
    return [
        DepthController(drafter_limit=drafter.draft_limit, costs=costs)
        for _ in range(drafter.grades)
    ]
