"""Speculative decoding of one request: rounds, parked where drafting does not pay (spec 03 RND)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from forerun.base.logs import logger
from forerun.contract.decoder import Decoder, Run
from forerun.contract.drafter import DraftSession, Proposal
from forerun.contract.model import Forward
from forerun.contract.sink import Drafting
from forerun.sampling.distribution import Distribution
from forerun.speculation.depth import DepthController
from forerun.speculation.round import Rounds
from forerun.speculation.round_clock import RoundClock
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
    session: DraftSession  # of the drafter that proposes
    listeners: Listeners  # that session, and those of other drafters
    drafter: str  # its name
    controller: DepthController
    clock: Callable[[], float]  # seconds, standing still while a reader is waited for (DEP-3)
    timed_parts: bool  # nothing is asynchronous, so that parts of a round can be timed (DEP-12)


class SpeculativeDecoder:
    """A `Decoder` that hands out a round's tokens in one run.

    While drafting does not pay, or where the drafter has nothing to propose, it is *parked*: plain
    decoding goes on, at its own speed, and counts as rounds of depth 0 (RND-2). It is plain
    decoding that knows at any time what the current token is.
    """

    def __init__(self, parts: Speculation) -> None:
        self._parts = parts
        self._round_clock = RoundClock()
        self._statistics = Statistics()

    def next(self, remaining: int) -> Run:
        """A round. Raises NoAllowedTokenError as plain decoding does."""
        parts = self._parts
        at = parts.clock()
        depth = min(parts.controller.scheduled, remaining - 1)  # the last is not drafted (RND-1)
        if depth > 0:
            handed_over = parts.plain.hand_over()
            if handed_over is not None:
                self._statistics.round(0, 0, 0)
                self._round_clock.resumed()
                return handed_over
            proposal = self._proposed(depth)
            if proposal is not None:
                return self._drafted(at, proposal)
        self._started(at, 0)
        run = parts.plain.next(remaining)
        self._ended(0, 0, 0)
        return run

    def drain(self) -> tuple[int, ...]:
        return self._parts.plain.drain()  # RND-16

    def close(self) -> None:
        self._parts.plain.close()  # RND-15
        log.info("%s", self._statistics.line())
        log.debug("%s", self._parts.controller.report().line())

    def drafting(self) -> Drafting:
        """What was drafted so far."""
        return self._statistics.drafting(self._parts.drafter)

    def _proposed(self, depth: int) -> Proposal | None:
        proposal = self._parts.session.propose(self._parts.plain.current, depth)
        return None if proposal is None else cut(proposal, depth)

    def _drafted(self, at: float, proposal: Proposal) -> Run:
        parts, depth = self._parts, proposal.tokens.shape[0]
        current, before = parts.plain.current, parts.plain.position
        self._started(at, depth)
        proposed = parts.clock() if parts.timed_parts else at
        verified = parts.rounds.run(current, before, proposal)
        if parts.timed_parts:
            took = parts.clock() - proposed
            self._round_clock.parts(drafting=proposed - at, forward=took)
        outcome = verified.outcome
        written = (current, *outcome.tokens[: outcome.kept])
        parts.plain.move(outcome.current, before + len(written))
        parts.listeners.committed(written, verified.forward, before)  # before any of it is shown
        parts.controller.outcome(outcome.accepted, outcome.observed)
        self._ended(depth, outcome.accepted, outcome.observed)
        if not outcome.tokens:
            return parts.plain.next(1)  # raises: no token is allowed, and the text is not complete
        return Run(outcome.tokens, verified.logprobs, depth, outcome.accepted)

    def _started(self, at: float, depth: int) -> None:
        sample = self._round_clock.started(at, depth)
        if sample is not None:
            self._parts.controller.cost(*sample)

    def _ended(self, depth: int, accepted: int, observed: int) -> None:
        self._statistics.round(depth, accepted, observed)
        self._parts.controller.next()


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
