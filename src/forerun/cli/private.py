"""A model in a runner of this command's own, which ends with it."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager

from forerun.cli.places import OpenModel
from forerun.cli.progress import import_model, loaded, pull_if_absent
from forerun.cli.sections import text_of
from forerun.protocol.cache import CacheReport
from forerun.protocol.events import Chunk, Done, Progress
from forerun.protocol.imports import CreateRequest
from forerun.protocol.requests import CompletionRequest
from forerun.scheduler.runners import LoadOptions, RunnerProcess
from forerun.settings import Settings
from forerun.store.modelfile import Modelfile, format_modelfile
from forerun.store.names import ModelName
from forerun.store.store import Store


class PrivatePlace:
    """A `Place`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._drafters: dict[ModelName, list[str]] = {}  # of the models opened here

    @contextmanager
    def opened(self, name: ModelName, options: LoadOptions) -> Iterator[OpenModel]:
        pull_if_absent(name, self._settings)
        with loaded(name, self._settings, options) as runner:
            self._drafters[name] = runner.connection.status().drafters
            yield _PrivateModel(runner)

    def has(self, name: ModelName) -> bool:
        return Store(self._settings.models).exists(name)

    def section(self, name: ModelName, section: str) -> str:
        model = Store(self._settings.models).get(name)
        return text_of(model, section, self._drafters.get(name, ()))

    def create(self, name: ModelName, made: Modelfile) -> None:
        text, folder = format_modelfile(made), str(self._settings.models)
        import_model(CreateRequest(name=str(name), modelfile=text, folder=folder), self._settings)


class _PrivateModel:
    """An `OpenModel`."""

    def __init__(self, runner: RunnerProcess) -> None:
        self._runner = runner

    @property
    def gone(self) -> bool:
        return self._runner.exited

    def complete(
        self, request: CompletionRequest
    ) -> Generator[Progress | Chunk | Done, None, None]:
        return self._runner.connection.complete(request)

    def cache(self, *, clear: bool = False) -> CacheReport:
        return self._runner.connection.cache(clear=clear)
