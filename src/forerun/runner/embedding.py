"""Texts on their way to vectors: queued one by one, given up together (05 THR-2, 08 API-13)."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError as Given
from concurrent.futures import Future
from functools import partial

from forerun.base.errors import CancelledError
from forerun.engine.embed import embed
from forerun.engine.loaded import LoadedModel
from forerun.engine.thread import DeviceThread
from forerun.protocol.events import Embeddings

Vector = list[float]


class EmbeddingWork:
    """One request's texts, each a task of the device thread. May be used from any thread."""

    def __init__(
        self,
        thread: DeviceThread,
        engine: LoadedModel,
        prompts: Sequence[Sequence[int]],
        dimensions: int | None,
    ) -> None:
        """Queue all of it. Raises ForerunError where the model is closed."""
        self.prompt_tokens = sum(map(len, prompts))
        self._cancelled = threading.Event()
        tasks: list[Callable[[], Vector]] = [
            partial(embed, engine, prompt, dimensions, self._cancelled) for prompt in prompts
        ]
        self.vectors: tuple[Future[Vector], ...] = tuple(map(thread.submit, tasks))

    def cancel(self) -> None:
        """Nobody waits: what is queued is not begun, what is under way ends with its chunk."""
        self._cancelled.set()
        for vector in self.vectors:
            vector.cancel()

    def result(self) -> Embeddings:
        """Wait for all of it; the first failure is raised and ends the rest."""
        try:
            vectors = [vector.result() for vector in self.vectors]
        except Given:
            raise CancelledError("cancelled while texts were embedded") from None
        finally:
            self.cancel()  # of what is done nothing changes
        return Embeddings(vectors=vectors, prompt_tokens=self.prompt_tokens)
