"""One request's story, from its tokens to exactly one `finish` or `fail` (spec 05 REQ)."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

from forerun.base.errors import BusyError, CancelledError, ForerunError, internal
from forerun.base.logs import logger
from forerun.contract.drafter import Drafter, DraftRequest
from forerun.contract.sink import DoneReason, Figures
from forerun.engine.decode import decode
from forerun.engine.follower import Follower
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.engine.memory import peak_bytes, restart_peak
from forerun.engine.plain import PlainDecoder
from forerun.engine.prefill import prefill
from forerun.sampling.sampler import Sampler
from forerun.speculation.decoder import Speculation, SpeculativeDecoder
from forerun.speculation.round import Rounds
from forerun.speculation.sources import Source, Sources

SLOT = 0  # requests run one at a time (THR-1)

log = logger(__name__)


class _Closable(Protocol):
    def close(self) -> None: ...


T = TypeVar("T", bound=_Closable)


def generate(loaded: LoadedModel, job: Job) -> None:
    """Answer `job` through its sink. Runs in the device thread.

    What is not a caller's mistake is answered, logged and raised again, for the thread to judge.
    """
    try:
        reason, figures = _answer(loaded, job)
    except ForerunError as error:
        job.sink.fail(error)
    except Exception as error:
        log.exception("a request failed")
        job.sink.fail(_answer_to(error))
        raise
    else:
        job.sink.finish(reason, figures)


def _answer(loaded: LoadedModel, job: Job) -> tuple[DoneReason, Figures]:
    """Everything that is acquired here is released in reverse order on every way out (REQ-3)."""
    if job.cancelled.is_set():
        raise CancelledError("cancelled while it was queued")
    started = time.monotonic()
    drafters = loaded.drafters.chosen(job.sampling.draft)
    with (
        _peak_logged(loaded.model.facts.device),
        _slot(loaded.sampler),
        loaded.prefix.begin(job.tokens) as session,
        _closing(_followed(loaded, drafters, job)) as follower,
    ):
        job.sink.started(len(job.tokens), session.cached)
        prefill(loaded, session, job, follower)
        prefilled = time.monotonic()
        loaded.sampler.add(SLOT, job.sampling, job.tokens)
        with _closing(_decoder(loaded, drafters, job, follower)) as decoder:
            ending = decode(decoder, job, session.outputs)
    return ending.reason, Figures(
        prompt_tokens=len(job.tokens),
        cached_tokens=session.cached,
        generated_tokens=ending.generated,
        prompt_seconds=prefilled - started,
        generation_seconds=time.monotonic() - prefilled,
        drafted_tokens=ending.drafted,
        accepted_tokens=ending.accepted,
        drafting=decoder.drafting(),
    )


def _followed(loaded: LoadedModel, drafters: Sequence[Drafter], job: Job) -> Follower:
    """Told of the request: the drafters that it uses, and the one that owns caches (GEN-3)."""
    told = [each for each in loaded.drafters.all if each in (*drafters, loaded.drafters.owner)]
    return Follower.open(told, DraftRequest(job.tokens, SLOT))


def _decoder(
    loaded: LoadedModel, drafters: Sequence[Drafter], job: Job, follower: Follower
) -> PlainDecoder | SpeculativeDecoder:
    """Without a drafter a session stays parked for its whole life, which is plain decoding."""
    plain = PlainDecoder(loaded, SLOT, job.tokens, follower)
    if not drafters:
        return plain
    model, sampler, bound = loaded.model, loaded.sampler, loaded.drafters
    sources = [
        Source(drafter.name, follower.session(drafter), bound.controllers[drafter.name])
        for drafter in drafters
    ]
    return SpeculativeDecoder(
        Speculation(
            plain=plain,
            rounds=Rounds(model, loaded.caches, sampler, slot=SLOT, eos=job.eos),
            sources=Sources(sources, bound.contests),
            listeners=follower,
            clock=lambda: time.perf_counter() - job.sink.waited_s,
            part_costs=bound.part_costs,
            timed_parts=model.facts.device.type == "cpu",
        )
    )


def _answer_to(error: Exception) -> ForerunError:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return BusyError("out of memory; shorten the prompt or load with a smaller num_ctx")
    return internal(error)


@contextmanager
def _closing(part: T) -> Iterator[T]:
    """Close in every outcome. What fails in it hides no unexpected error that came before."""
    try:
        yield part
    except BaseException as error:
        try:
            part.close()
        except Exception:
            if isinstance(error, ForerunError):
                raise  # a request that was only cancelled or refused has broken something
            log.exception("closing failed after an error")
        raise
    part.close()


@contextmanager
def _peak_logged(device: torch.device) -> Iterator[None]:
    restart_peak(device)
    try:
        yield
    finally:
        log.info("peak_memory=%d", peak_bytes(device))


@contextmanager
def _slot(sampler: Sampler) -> Iterator[None]:
    try:
        yield
    finally:
        sampler.remove(SLOT)
