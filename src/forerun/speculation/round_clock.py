"""Which rounds' times say what a depth costs (DEP-3, DEP-12). It is told times and reads none."""

from dataclasses import dataclass

from forerun.speculation.costs import Costs


@dataclass(slots=True)
class _Round:
    at: float
    depth: int
    after: int | None  # the depth of the round before it; None: there was none to compare with
    blocked: float = 0.0
    parts: tuple[float, float] | None = None  # drafting, forward
    earns: bool = True


class RoundClock:
    """Times the rounds of one request, each from its start to the next one's start.

    That includes handing tokens out. Two neighbours of one depth give a sample as it is; after a
    change of depth a round takes longer than it would in the long run. A drafter whose proposals
    vary in length rarely has such neighbours. Where the rounds' parts are told, the sample is then
    put together of what drafting so much, a forward of that width and the rest take on average.
    """

    def __init__(self) -> None:
        self._round: _Round | None = None
        self._drafting = Costs()  # by drafts
        self._forwards = Costs()  # by drafts: a width less one
        self._rest = Costs()  # at 0

    def started(self, at: float, depth: int) -> tuple[int, float] | None:
        """A round of `depth` tokens, really drafted, began at `at` seconds of any clock.

        Returns the depth and milliseconds of the round before, if they can be told.
        """
        before, sample = self._round, None
        if before is not None:
            sample = self._sample(before, 1000 * (at - before.at - before.blocked))
        self._round = _Round(at, depth, None if before is None else before.depth)
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

    def _sample(self, ended: _Round, milliseconds: float) -> tuple[int, float] | None:
        composed = self._composed(ended, milliseconds)
        if not ended.earns:
            return None
        earned = milliseconds if ended.depth == ended.after else composed
        return None if earned is None else (ended.depth, earned)

    def _composed(self, ended: _Round, milliseconds: float) -> float | None:
        """The averages of a round's parts with this one's in them; None: a width's first time."""
        if ended.parts is None:
            return None
        drafting, forward = ended.parts
        known = ended.depth in self._forwards
        parts = [
            (self._drafting, ended.depth, 1000 * drafting),
            (self._forwards, ended.depth, 1000 * forward),
            (self._rest, 0, milliseconds - 1000 * (drafting + forward)),
        ]
        for costs, key, took in parts:
            costs.add(key, took)
        if not known:
            return None
        return sum(costs.at(key) for costs, key, _ in parts if key in costs)
