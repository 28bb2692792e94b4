"""Which rounds' times say what a depth costs (DEP-3, DEP-12). It is told times and reads none."""

from dataclasses import dataclass, field

from forerun.speculation.costs import Costs

Kind = tuple[str | None, int]  # whose drafts, and how many; (None, 0) where nothing was drafted


@dataclass(frozen=True, slots=True)
class PartCosts:
    """What the parts of rounds take, in milliseconds. It may outlive a request."""

    drafting: dict[str | None, Costs] = field(default_factory=dict)  # by drafter, by drafts
    forwards: Costs = field(default_factory=Costs)  # by drafts: a width less one
    rest: Costs = field(default_factory=Costs)  # at 0


@dataclass(slots=True)
class _Round:
    at: float
    kind: Kind
    after: Kind | None  # that of the round before it; None: there was none to compare with
    blocked: float = 0.0
    parts: tuple[float, float] | None = None  # drafting, forward
    earns: bool = True


class RoundClock:
    """Times the rounds of one request, each from its start to the next one's start.

    That includes handing tokens out. Two neighbours of one drafter and depth give a sample as it
    is; after a change a round takes longer than it would in the long run. Where proposals vary in
    length, or drafters take turns, such neighbours are rare. If the rounds' parts are told, the
    sample is then put together of what drafting so much, a forward of that width and the rest take
    on average.
    """

    def __init__(self, parts: PartCosts | None = None) -> None:
        """`parts`: what is known of them already, and is learnt here; None: nothing."""
        self._round: _Round | None = None
        self._parts = PartCosts() if parts is None else parts

    def started(
        self, at: float, depth: int, source: str | None = None
    ) -> tuple[str | None, int, float] | None:
        """A round of `depth` tokens, really drafted by `source`, began at `at` of any clock.

        Returns drafter, depth and milliseconds of the round before, if they can be told.
        """
        before, sample = self._round, None
        if before is not None:
            took = self._sample(before, 1000 * (at - before.at - before.blocked))
            sample = None if took is None else (*before.kind, took)
        kind = (source if depth else None, depth)
        self._round = _Round(at, kind, None if before is None else before.kind)
        return sample

    def blocked(self, seconds: float) -> None:
        """The round under way waited so long for a reader or a queue."""
        if self._round is not None:
            self._round.blocked += seconds

    def parts(self, *, drafting: float, forward: float) -> None:
        """Seconds that the round under way took to draft, and to forward current and drafts."""
        assert self._round is not None, "no round is under way"
        self._round.parts = (drafting, forward)

    def resumed(self) -> None:
        """The round under way was the first after parking: it earns no sample."""
        if self._round is not None:
            self._round.earns = False

    def _sample(self, ended: _Round, milliseconds: float) -> float | None:
        composed = self._composed(ended, milliseconds)
        if not ended.earns:
            return None
        return milliseconds if ended.kind == ended.after else composed

    def _composed(self, ended: _Round, milliseconds: float) -> float | None:
        """The averages of a round's parts with this one's in them; None: a width's first time."""
        if ended.parts is None:
            return None
        drafting, forward = ended.parts
        source, depth = ended.kind
        of_source = self._parts.drafting.setdefault(source, Costs())
        known = depth in self._parts.forwards
        parts = [
            (of_source, depth, 1000 * drafting),
            (self._parts.forwards, depth, 1000 * forward),
            (self._parts.rest, 0, milliseconds - 1000 * (drafting + forward)),
        ]
        for costs, key, took in parts:
            costs.add(key, took)
        if not known:
            return None
        return sum(costs.at(key) for costs, key, _ in parts if key in costs)
