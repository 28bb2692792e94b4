"""The decode loop: the only place where generation stops (spec 05 DEC)."""

from dataclasses import dataclass

from forerun.base.errors import CancelledError
from forerun.contract.decoder import Decoder, Run
from forerun.contract.sink import DoneReason
from forerun.engine.job import Job


@dataclass(slots=True)
class Ending:
    """How a text ended, and what it took. Counts hold for a text that broke off, too."""

    reason: DoneReason = "length"
    generated: int = 0
    drafted: int = 0
    accepted: int = 0


def decode(decoder: Decoder, job: Job, outputs: list[int]) -> Ending:
    """Hand out tokens until the budget, a stop token, a stop string or the grammar ends the text.

    `outputs` receives every token drawn, also one that is never handed out, on every exit: it is
    the record of what the caches may hold (DEC-2, DEC-4).
    """
    ending = Ending()
    try:
        while ending.generated < job.budget and ending.reason == "length":
            if job.cancelled.is_set():
                raise CancelledError("cancelled")
            run = decoder.next(job.budget - ending.generated)
            outputs.extend(run.tokens)
            _hand_out(run, job, ending)
    finally:
        outputs.extend(decoder.drain())
    return ending


def _hand_out(run: Run, job: Job, ending: Ending) -> None:
    """Give the sink what counts of a run: up to a stop token or the budget, whichever is first."""
    left = job.budget - ending.generated
    end = next((place for place, token in enumerate(run.tokens) if token in job.eos), None)
    counted = len(run.tokens) if end is None else end
    if not run.tokens or counted < min(left, len(run.tokens)):
        ending.reason = "stop"
    counted = min(counted, left)
    if counted:
        stopped = job.sink.take(run.tokens[:counted], run.logprobs[:counted])
        if stopped is not None:
            ending.reason, counted = "stop", stopped
    ending.generated += counted
    ending.drafted += run.drafted
    ending.accepted += run.accepted
