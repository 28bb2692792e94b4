"""A loaded model at work: requests in, event streams out. HTTP and the Python API stand on it."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from forerun.base.errors import BusyError, ForerunError, RequestError, internal
from forerun.base.spans import Span
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.engine.memory import cache_bytes, device_bytes, release_freed
from forerun.engine.thread import DeviceThread
from forerun.protocol.cache import CacheReport
from forerun.protocol.events import Embeddings, Failed
from forerun.protocol.requests import CompletionRequest, EmbedRequest
from forerun.protocol.status import Memory, RunnerStatus
from forerun.runner.cache_report import Look, describe, look
from forerun.runner.embedding import EmbeddingWork
from forerun.runner.prepare import Limits, prepare, prepare_embedding
from forerun.runner.respond import Responder
from forerun.runner.stream import EventStream, StreamLimits
from forerun.runner.text import TextParts

LOOK_S = 0.5  # longest wait for a fresh look at the prefix cache; a device without work needs none


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model ready to answer, as data."""

    engine: LoadedModel
    text: TextParts
    load_s: float

    @property
    def limits(self) -> Limits:
        engine, facts = self.engine, self.engine.model.facts
        return Limits(
            engine.context, facts.max_context, facts.vocab_size, engine.drafters.choices()
        )


class Service:
    """May be used from any thread; whatever torch does is done in the device thread."""

    def __init__(self, served: ServedModel, thread: DeviceThread) -> None:
        self._served: ServedModel | None = served
        self._thread = thread
        self._lock = threading.Lock()
        self._streams: set[EventStream] = set()
        self._memory = Memory()
        self._seen: Look | None = None  # the cache after the latest answer or measurement
        self._refreshing: Future[None] | None = None

    @property
    def served(self) -> ServedModel:
        """Raises ForerunError once the service is closed."""
        if self._served is None:
            raise ForerunError("the model is closed; load it again")
        return self._served

    def complete(
        self, request: CompletionRequest, limits: StreamLimits | None = None
    ) -> EventStream:
        """Check a request and queue it; its stream ends with exactly one Done or Failed.

        Raises a ForerunError for what is wrong with the request, before anything is queued.
        """
        stream = EventStream(limits)
        served = self.served
        prepared = prepare(request, served.text, served.limits)
        sink = Responder(
            stream,
            served.text.tokenizer,
            prepared.stops,
            channels=None if prepared.channels is None else prepared.channels.start(),
            tag_ids=served.text.tag_ids,
            load_s=served.load_s,
            context=prepared.tokens if request.return_context else None,
        )
        job = Job(
            tokens=prepared.tokens,
            eos=frozenset() if request.ignore_eos else served.text.tokenizer.eos_ids,
            sampling=prepared.sampling,
            budget=prepared.budget,
            sink=sink,
            cancelled=stream.cancelled,
        )
        with self._lock:
            self._streams.add(stream)
        try:
            future = self._thread.submit(partial(self._answer, served.engine, job, stream))
        except ForerunError:
            self._forget(stream)
            raise
        future.add_done_callback(partial(self._ended, stream))
        return stream

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text` alone, no BOS added. `special`: control tokens in it count."""
        return self.served.text.tokenizer.encode([Span(text, trusted=special)])

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, control tokens included."""
        vocabulary = self.served.text.tokenizer.vocab_size
        for token in tokens:
            if not 0 <= token < vocabulary:
                raise RequestError(f"token {token} is none; tokens are 0 to {vocabulary - 1}")
        return self.served.text.tokenizer.decode(tokens, control=True)

    def embed(self, request: EmbedRequest) -> Embeddings:
        """A vector of length 1 for each text."""
        return self.start_embedding(request).result()

    def start_embedding(self, request: EmbedRequest) -> EmbeddingWork:
        """Check a request and queue its texts. Raises as `complete` does."""
        served = self.served
        size = served.engine.pooling.width(served.engine.model.facts.hidden_size)
        if request.dimensions is not None and not 1 <= request.dimensions <= size:
            raise RequestError(f"dimensions is {request.dimensions}; it must be 1 to {size}")
        prompts = [
            prepare_embedding(text, served.text, served.limits, truncate=request.truncate)
            for text in request.texts
        ]
        return EmbeddingWork(self._thread, served.engine, prompts, request.dimensions)

    def status(self) -> RunnerStatus:
        """The state with the memory figures of the latest refresh."""
        with self._lock:
            at_work, memory = len(self._streams), self._memory
        return RunnerStatus(
            state="ready",
            progress=1.0,
            context_length=self.served.engine.context,
            drafters=list(self.served.engine.drafters.controllers),
            memory=memory,
            active_requests=min(at_work, 1),  # the device thread runs one at a time
            queued_requests=max(at_work - 1, 0),
            load_seconds=self.served.load_s,
        )

    def refresh(self) -> "Future[None]":
        """Measure memory in the device thread; one measurement at a time (HTP-2)."""
        with self._lock:
            if self._refreshing is None or self._refreshing.done():
                self._refreshing = self._thread.submit(self._measure)
            return self._refreshing

    def cache(self, *, wait_s: float = LOOK_S) -> CacheReport:
        """What is cached; while the model is answering, what was when its last answer ended."""
        tokenizer, work = self.served.text.tokenizer, self._thread.submit(self._look)
        try:
            return describe(work.result(wait_s), tokenizer)
        except TimeoutError:
            with self._lock:
                seen = self._seen
            if seen is not None and work.cancel():
                return describe(seen, tokenizer, stale=True)
        return describe(work.result(), tokenizer)

    def clear_cache(self, *, wait_s: float | None = None) -> CacheReport:
        """Drop stored conversations and the live one, and give their memory back to the system.

        What is queued is answered first. BusyError, and nothing is dropped, where that takes
        longer than `wait_s`.
        """
        served, work = self.served, self._thread.submit(self._clear)
        try:
            freed, seen = work.result(wait_s)
        except TimeoutError:
            if work.cancel():
                raise BusyError(
                    f"{served.text.name} is answering, so nothing was cleared; try again once it "
                    "is done"
                ) from None
            freed, seen = work.result()
        return describe(seen, served.text.tokenizer, freed_bytes=freed)

    def close(self) -> None:
        """Cancel every request, free the model, wait for the device thread's end. Idempotent."""
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        with suppress(ForerunError):  # the thread is closed: so is the service
            self._thread.submit(self._unload)
        self._thread.close()

    def _unload(self) -> None:
        """Nothing else holds the model by now; what it took goes back to the system (LOD-6)."""
        device = self.served.engine.model.facts.device
        self.served.engine.prefix.clear()
        self._served = None
        release_freed(device)

    def _answer(self, engine: LoadedModel, job: Job, stream: EventStream) -> None:
        generate(engine, job)
        self._forget(stream)
        self._measure()  # the answer is out; who asks during the next one is told of this moment

    def _clear(self) -> tuple[int, Look]:
        """The bytes that this freed, and what is cached now: nothing."""
        engine = self.served.engine
        before = engine.prefix.snapshot_bytes + cache_bytes(engine)
        engine.prefix.clear()
        release_freed(engine.model.facts.device)
        self._measure()
        return before - engine.prefix.snapshot_bytes - cache_bytes(engine), self._look()

    def _look(self) -> Look:
        seen = look(self.served.engine)
        with self._lock:
            self._seen = seen
        return seen

    def _measure(self) -> None:
        engine, seen = self.served.engine, self._look()
        memory = Memory(
            weights=engine.weight_bytes,
            caches=seen.live_bytes,
            snapshots=seen.snapshots,
            budget=seen.budget,
            device_total=device_bytes(engine.model.facts.device),
        )
        with self._lock:
            self._memory = memory

    def _ended(self, stream: EventStream, future: "Future[None]") -> None:
        """Keeps the promise of one last event even if a sink itself should break."""
        self._forget(stream)
        error = future.exception()
        if error is not None and not stream.ended:
            stream.put(Failed(status=500, message=str(internal(error))))

    def _forget(self, stream: EventStream) -> None:
        with self._lock:
            self._streams.discard(stream)
