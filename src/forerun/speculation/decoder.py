"""Speculative decoding of one request: rounds, parked where drafting does not pay (spec 03 RND)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from forerun.base.logs import logger
from forerun.contract.decoder import Decoder, Run
from forerun.contract.drafter import Proposal
from forerun.contract.model import Forward
from forerun.contract.sink import Drafting
from forerun.sampling.distribution import Distribution
from forerun.speculation.round import Rounds
from forerun.speculation.round_clock import PartCosts, RoundClock
from forerun.speculation.sources import Choice, Sources
from forerun.speculation.statistics import Statistics

log = logger(__name__)


class PlainDecoding(Decoder, Protocol):
    """Plain decoding that rounds may interrupt: between two calls of either, both stand alike."""

    @property
    def current(self) -> int:
        """The token that the next forward writes. Asked for only where nothing is in flight."""
        ...

    @property
    def position(self) -> int:
        """Where the next forward writes."""
        ...

    @property
    def in_flight(self) -> bool:
        """Whether `hand_over` has something to hand over, or to raise."""
        ...

    def hand_over(self) -> Run | None:
        """The token in flight, without a forward of it; None where none is (RND-3)."""
        ...

    def move(self, current: int | None, position: int) -> None:
        """Others have written all before `position`, and told the drafters of it.

        current   goes on from there; None: no token is allowed, which is what the next call raises
        """
        ...


class Listeners(Protocol):
    """The drafters' sessions."""

    def committed(self, tokens: Sequence[int], forward: Forward, position: int) -> None:
        """`forward` has written `tokens` into the target's caches, from `position` on (DRF-2)."""
        ...


@dataclass(frozen=True, slots=True)
class Speculation:
    """What a speculative decoder is made of."""

    plain: PlainDecoding
    rounds: Rounds
    sources: Sources  # of drafts
    listeners: Listeners  # the sessions of these, and those of other drafters
    clock: Callable[[], float]  # seconds, standing still while a reader is waited for (DEP-3)
    part_costs: PartCosts
    timed_parts: bool  # nothing is asynchronous, so that parts of a round can be timed (DEP-12)


class SpeculativeDecoder:
    """A `Decoder` that hands out a round's tokens in one run.

    While drafting does not pay, or where the drafter has nothing to propose, it is *parked*: plain
    decoding goes on, at its own speed, and counts as rounds of depth 0 (RND-2). It is plain
    decoding that knows at any time what the current token is.
    """

    def __init__(self, parts: Speculation) -> None:
        self._parts = parts
        self._round_clock = RoundClock(parts.part_costs)
        self._statistics = Statistics()

    def next(self, remaining: int) -> Run:
        """A round. Raises NoAllowedTokenError as plain decoding does."""
        parts = self._parts
        at = parts.clock()
        most = remaining - 1  # the last is not drafted (RND-1)
        if most < 1 or (parts.plain.in_flight and not parts.sources.wanted):
            run = self._plain(at, remaining)
            parts.sources.unasked()
            return run
        handed_over = parts.plain.hand_over()
        if handed_over is not None:
            self._statistics.round(0, 0, 0)
            self._round_clock.resumed()
            return handed_over
        choice = parts.sources.choose(parts.plain.current)
        proposal = None if choice is None else self._proposed(choice, most)
        if choice is not None and proposal is not None:
            run = self._drafted(at, choice, proposal)
        else:
            run = self._plain(at, remaining)
        if choice is not None:
            choice.depth.next()
        return run

    def drain(self) -> tuple[int, ...]:
        return self._parts.plain.drain()  # RND-16

    def close(self) -> None:
        self._parts.plain.close()  # RND-15
        log.info("%s", self._statistics.line())
        for source in self._parts.sources:
            for grade, depth in enumerate(source.depths):
                log.debug("%s of grade %d: %s", source.name, grade, depth.report().line())

    def drafting(self) -> Drafting:
        """What was drafted so far."""
        return self._statistics.drafting([source.name for source in self._parts.sources])

    def _plain(self, at: float, remaining: int) -> Run:
        self._started(at, 0, None)
        run = self._parts.plain.next(remaining)
        self._statistics.round(0, 0, 0)
        return run

    def _proposed(self, choice: Choice, most: int) -> Proposal | None:
        depth = min(choice.depth.scheduled, most)
        if not depth:
            return None
        proposal = choice.source.session.propose(self._parts.plain.current, depth)
        return None if proposal is None else cut(proposal, depth)

    def _drafted(self, at: float, choice: Choice, proposal: Proposal) -> Run:
        parts, depth, source = self._parts, proposal.tokens.shape[0], choice.source.name
        current, before = parts.plain.current, parts.plain.position
        self._started(at, depth, source)
        proposed = parts.clock() if parts.timed_parts else at
        verified = parts.rounds.run(current, before, proposal)
        if parts.timed_parts:
            took = parts.clock() - proposed
            self._round_clock.parts(drafting=proposed - at, forward=took)
        outcome = verified.outcome
        written = (current, *outcome.tokens[: outcome.kept])
        parts.plain.move(outcome.current, before + len(written))
        parts.listeners.committed(written, verified.forward, before)  # before any of it is shown
        choice.depth.outcome(outcome.accepted, outcome.observed)
        self._statistics.round(depth, outcome.accepted, outcome.observed, source)
        if not outcome.tokens:
            return parts.plain.next(1)  # raises: no token is allowed, and the text is not complete
        return Run(outcome.tokens, verified.logprobs, depth, outcome.accepted)

    def _started(self, at: float, depth: int, source: str | None) -> None:
        sample = self._round_clock.started(at, depth, source)
        if sample is not None:
            self._parts.sources.cost(*sample)


def cut(proposal: Proposal, most: int) -> Proposal | None:
    """Its first `most` drafts; None where none is left."""
    drafts = proposal.tokens.shape[0]
    if drafts > most:
        rows, host = proposal.rows, proposal.host_tokens
        ids = None if rows.ids is None else rows.ids[:most]
        proposal = replace(
            proposal,
            tokens=proposal.tokens[:most],
            rows=Distribution(rows.probs[:most], ids),
            host_tokens=None if host is None else host[:most],
        )
    return proposal if drafts and most > 0 else None
