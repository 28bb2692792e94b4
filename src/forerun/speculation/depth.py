"""How many tokens to draft in the next round (DEP): no clock, no tensor, only what it is told."""

from collections.abc import Mapping
from dataclasses import dataclass

from forerun.speculation.acceptance import Acceptance
from forerun.speculation.costs import Costs
from forerun.speculation.trials import Trials

LIMIT = 15  # the widest forward, 16 rows, for which a row does not depend on the width (DEP-15)


@dataclass(frozen=True, slots=True)
class DepthReport:
    """What the controller goes by, for the debug line (STA-2)."""

    costs: Mapping[int, float]  # milliseconds of a round, by depth that was measured
    rates: tuple[float, ...]  # trusted acceptance of the first draft, the second, ...
    speeds: tuple[float, ...]  # expected tokens a second at depth 0, 1, ...; empty: not known
    probe_interval: int

    def line(self) -> str:
        costs = " ".join(f"{depth}:{ms:.2f}" for depth, ms in self.costs.items())
        rates = " ".join(f"{rate:.2f}" for rate in self.rates)
        speeds = " ".join(f"{speed:.0f}" for speed in self.speeds)
        return (
            f"draft depth: cost by depth in ms [{costs}], trusted acceptance [{rates}], "
            f"expected tokens/s by depth [{speeds}], a probe every {self.probe_interval} rounds"
        )


class DepthController:
    """Looks for the depth of most committed tokens a millisecond, and keeps looking now and then.

    Belongs to one grade of a loaded model's drafter and outlives requests (DEP-7, DEP-11). A deeper
    round is probed at intervals that double while the selection stays what it is.
    """

    def __init__(self, *, drafter_limit: int = 0, costs: Costs | None = None) -> None:
        """
        drafter_limit  most tokens that the drafter proposes at once; 0: it has no limit
        costs          shared with the drafter's other grades; None: its own
        """
        self._drafter_limit = drafter_limit
        self._costs = Costs() if costs is None else costs
        self._acceptance = Acceptance()
        self._scheduled = 0
        self._selected = 0
        self._probes = Trials()
        self._probing = False
        self._speed: float | None = None

    @property
    def scheduled(self) -> int:
        """The depth of the next round."""
        return self._scheduled

    @property
    def speed(self) -> float | None:
        """Tokens a second that the depth chosen last promises; None: too few costs are known.

        Where drafts were not judged yet it promises too much, and so is tried.
        """
        return self._speed

    def cost(self, depth: int, milliseconds: float) -> None:
        """What a round of `depth` took. A depth or time that cannot be is ignored."""
        self._costs.add(depth, milliseconds)

    def outcome(self, accepted: int, observed: int) -> None:
        """A round's first `observed` drafts are judged: `accepted` of them, then a refusal."""
        self._acceptance.add(accepted, observed)

    def next(self) -> int:
        """Choose the next round's depth, at the end of each round (DEP-6)."""
        self._scheduled = self._choice()
        return self._scheduled

    def report(self) -> DepthReport:
        return DepthReport(
            self._costs.measured(), self._acceptance.rates(), self._speeds(), self._probes.interval
        )

    def _choice(self) -> int:
        limit, selected = self._limit(), self._best()
        if selected != self._selected:
            self._selected = selected
            self._probes.restart()
        elif self._probing:
            self._probes.put_off()
        self._probing = False
        if self._probes.due():
            probe = min(selected + 1, limit)
            if probe != selected:
                self._probing = True
                return probe
        unknown = (depth for depth in range(limit + 1) if depth not in self._costs)
        return next(unknown, selected)

    def _limit(self) -> int:
        """One past the trusted depth: a rate that nobody has seen would always look best."""
        limits = [self._acceptance.trusted + 1, LIMIT]
        return min([*limits, self._drafter_limit] if self._drafter_limit else limits)

    def _best(self) -> int:
        speeds = self._speeds()
        if not speeds:
            return 0
        self._speed = max(speeds)
        return speeds.index(self._speed)  # of equal ones the smallest depth

    def _speeds(self) -> tuple[float, ...]:
        """Expected tokens a second by depth; empty while fewer than two depths are measured."""
        if len(self._costs) < 2:
            return ()
        expected = self._acceptance.expected(self._limit())
        costs = [self._costs.at(depth) for depth in range(len(expected))]
        # No depth costs more than a deeper one: if it seems to, a stall is in its average, which
        # nothing would correct while the deeper one is preferred for it.
        for depth in reversed(range(len(costs) - 1)):
            costs[depth] = min(costs[depth], costs[depth + 1])
        return tuple(1000 * n / cost for n, cost in zip(expected, costs, strict=True))
