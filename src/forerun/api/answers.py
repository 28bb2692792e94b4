"""From a checked request to its answer: lease, completion or vectors, log line and figures."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from forerun.api.errors import unexpected
from forerun.api.metrics import Metrics
from forerun.api.services import Services
from forerun.base.errors import CancelledError, ForerunError, one_line
from forerun.base.logs import event, logger
from forerun.protocol.events import Chunk, Done, Figures, Progress
from forerun.protocol.requests import CompletionRequest, EmbedRequest
from forerun.scheduler.runners import LoadOptions
from forerun.scheduler.scheduler import Lease
from forerun.store.names import ModelName

log = logger(__name__)

NO_MODEL = "none"
NOTHING = Figures(
    prompt_tokens=0, cached_tokens=0, generated_tokens=0, prompt_seconds=0, generation_seconds=0
)


@dataclass(frozen=True, slots=True)
class Ask:
    """A completion as any dialect asks for it.

    Without a request the model is only loaded or, where it is to stay for 0 s, unloaded.
    """

    model: ModelName
    request: CompletionRequest | None
    load: LoadOptions = field(default_factory=LoadOptions)
    keep_alive_s: float | None = None  # None: nothing is said


@dataclass(frozen=True, slots=True)
class EmbedAsk:
    """Texts to embed as any dialect asks for them."""

    model: ModelName
    request: EmbedRequest
    load: LoadOptions = field(default_factory=LoadOptions)
    keep_alive_s: float | None = None


@dataclass(frozen=True, slots=True)
class Embedded:
    """A vector for each text, in order, and what it took."""

    vectors: list[list[float]]
    prompt_tokens: int
    load_s: float  # what the request waited for a load


async def answer(
    services: Services, ask: Ask, leased: Callable[[Lease], None]
) -> AsyncGenerator[Progress | Chunk | Done, None]:
    """The events of one completion, the last one `Done`; every failure is raised.

    Closing the generator cancels the request and gives the lease back. Every outcome is one line in
    the log and counted.
    """
    if ask.request is None:
        yield await hold(services, ask, leased)
        return
    async with _leased(services, ask) as (lease, told):
        leased(lease)
        async with aclosing(lease.connection.complete(ask.request)) as events:
            async for each in events:
                lease.started()
                if isinstance(each, Done):
                    told.done(each)
                yield each


async def embed(services: Services, ask: EmbedAsk) -> Embedded:
    """The vectors of some texts; every failure is raised. Logged and counted as answers are."""
    async with _leased(services, ask) as (lease, told):
        began = time.monotonic()
        found = await lease.connection.embed(ask.request)
        lease.started()
        told.embedded(len(found.vectors), found.prompt_tokens, time.monotonic() - began)
        return Embedded(found.vectors, found.prompt_tokens, lease.load_s)


async def hold(services: Services, ask: Ask, leased: Callable[[Lease], None]) -> Done:
    """Load a model or unload it, answering nothing (08 API-6).

    The lease is over when the answer goes out, so that who asks next sees the model's new time.
    """
    if ask.keep_alive_s == 0:
        await services.scheduler.unload(ask.model)
        event(log, "unload", model=str(ask.model))
        return Done(reason="unload", figures=NOTHING)
    async with _leased(services, ask) as (lease, told):
        leased(lease)
        told.loaded()
    return Done(reason="load", figures=NOTHING)


@asynccontextmanager
async def _leased(services: Services, ask: Ask | EmbedAsk) -> AsyncIterator[tuple[Lease, "_Told"]]:
    """The lease of a request and who tells its end; a failure inside is told here."""
    told = _Told(services.metrics, str(ask.model))
    try:
        async with services.scheduler.lease(
            ask.model, ask.load, keep_alive_s=ask.keep_alive_s
        ) as lease:
            told.leased(lease)
            yield lease, told
    except ForerunError as error:
        told.failed(error)
        raise
    except Exception as error:  # the border of a request: a bug of ours is not the client's leaving
        told.failed(unexpected(error))
        raise
    except BaseException:  # closed, or its task was cancelled
        told.left()
        raise


class _Told:
    """Tells the log and the metrics how one request ended, once."""

    def __init__(self, metrics: Metrics, model: str) -> None:
        self._metrics = metrics
        self._model = model
        self._label = NO_MODEL  # until there is such a model: callers do not make up labels
        self._load_s = 0.0
        self._ended = False

    def leased(self, lease: Lease) -> None:
        self._label, self._load_s = self._model, lease.load_s
        if lease.load_s:
            self._metrics.load_took(self._label, lease.load_s)

    def done(self, done: Done) -> None:
        self._ended = True
        self._metrics.answered(self._label, done.reason, done.figures)
        figures = done.figures
        event(
            log,
            "request",
            model=self._model,
            reason=done.reason,
            prompt_tokens=figures.prompt_tokens,
            cached_tokens=figures.cached_tokens,
            generated_tokens=figures.generated_tokens,
            **_prompt_speed(figures),
            generated_per_s=_speed(figures.generated_tokens, figures.generation_seconds),
            first_token_s=figures.first_token_seconds,
            load_s=self._load_s,
            **_drafts(figures),
        )

    def embedded(self, texts: int, prompt_tokens: int, seconds: float) -> None:
        self._ended = True
        self._metrics.requests.labels(self._label, "embed").inc()
        event(
            log,
            "embed",
            model=self._model,
            texts=texts,
            prompt_tokens=prompt_tokens,
            prompt_per_s=_speed(prompt_tokens, seconds),
            load_s=self._load_s,
        )

    def loaded(self) -> None:
        self._ended = True
        self._metrics.requests.labels(self._label, "load").inc()
        event(log, "load", model=self._model, load_s=self._load_s)

    def failed(self, error: ForerunError) -> None:
        if not self._ended:
            self._ended = True
            self._metrics.failed(self._label, error.status)
            text = one_line(error)
            event(log, "request failed", model=self._model, status=error.status, error=text)

    def left(self) -> None:
        if not self._ended:
            self._ended = True
            self._metrics.failed(self._label, CancelledError.status)
            event(log, "request cancelled", model=self._model)


def _prompt_speed(figures: Figures) -> dict[str, float]:
    """Of what was evaluated for the prompt; nothing if all of it but its last token was cached."""
    evaluated = figures.prompt_tokens - figures.cached_tokens
    return {"prompt_per_s": _speed(evaluated, figures.prompt_seconds)} if evaluated > 1 else {}


def _drafts(figures: Figures) -> dict[str, str | int]:
    drafting = figures.drafting
    if drafting is None:
        return {}
    return {
        "drafter": drafting.drafter,
        "rounds": drafting.rounds,
        "drafted_tokens": drafting.drafted,
        "accepted_tokens": drafting.accepted,
    }


def _speed(tokens: int, seconds: float) -> float:
    return tokens / seconds if seconds > 0 else 0.0
