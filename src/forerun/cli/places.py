"""Where a command finds its model: at a server that is up, or in a runner of its own."""

from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Protocol

from forerun.protocol.cache import CacheReport
from forerun.protocol.events import Chunk, Done, Progress
from forerun.protocol.requests import CompletionRequest
from forerun.scheduler.runners import LoadOptions
from forerun.store.modelfile import Modelfile
from forerun.store.names import ModelName


class OpenModel(Protocol):
    """A model that is loaded."""

    @property
    def gone(self) -> bool:
        """Whether it answers no more and must be opened again."""
        ...

    def complete(
        self, request: CompletionRequest
    ) -> Generator[Progress | Chunk | Done, None, None]:
        """The events of an answer, the last one `Done`. A failure is raised; closing cancels."""
        ...

    def cache(self, *, clear: bool = False) -> CacheReport:
        """What it has cached, after a clear if that is asked for."""
        ...


class Place(Protocol):
    """A store of models, and where they are loaded."""

    def opened(self, name: ModelName, options: LoadOptions) -> AbstractContextManager[OpenModel]:
        """The model, pulled if it is absent, and loaded; both are shown while they go on."""
        ...

    def has(self, name: ModelName) -> bool:
        """Whether there is such a model."""
        ...

    def section(self, name: ModelName, section: str) -> str:
        """One of the sections of `forerun show`, as text."""
        ...

    def create(self, name: ModelName, made: Modelfile) -> None:
        """Make a model of another one."""
        ...
