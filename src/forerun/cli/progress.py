"""What long work looks like while it runs: bars on a terminal, plain lines in a pipe or log."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import click

from forerun.base.errors import ImportFailedError
from forerun.base.units import format_bytes
from forerun.protocol.events import Progress
from forerun.protocol.imports import Imported, ImportRequest, PullRequest
from forerun.protocol.status import RunnerStatus
from forerun.scheduler.importing import run_import
from forerun.scheduler.runners import LoadOptions, RunnerProcess
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store


def import_model(request: ImportRequest, settings: Settings) -> str:
    """Run a pull or create to its end, showing progress; the registered name."""
    with shown(sys.stderr.isatty()) as show:
        for event in run_import(request, settings):
            if isinstance(event, Imported):
                return event.name
            show(event.status, event.completed, event.total)
    raise ImportFailedError("the importer ended without a result; try again")


def pull_if_absent(name: ModelName, settings: Settings) -> None:
    """Fetch a model that is not in the store yet."""
    if not Store(settings.models).exists(name):
        import_model(PullRequest(name=str(name)), settings)


@contextmanager
def loaded(name: ModelName, settings: Settings, options: LoadOptions) -> Iterator[RunnerProcess]:
    """A private runner with the model ready, closed at the end. Shows that it is loading."""
    with RunnerProcess(str(name), settings, options=options) as runner:
        with shown(sys.stderr.isatty(), lines=False) as show:

            def report(status: RunnerStatus) -> None:
                if status.state == "loading":
                    show(f"loading {name}", int(status.progress * 100), 100)

            status = runner.load(report, stall_s=settings.load_timeout_s)
        say_cut_context(options, status.context_length)
        yield runner


def say_cut_context(options: LoadOptions, loaded_length: int) -> None:
    """Tell of a context that is shorter than was asked for (05 PRP-8)."""
    if options.num_ctx and loaded_length < options.num_ctx:
        limit = f"num_ctx {options.num_ctx} is above the model's {loaded_length}"
        click.echo(f"{limit}, which it is cut to", err=True)


Show = Callable[[str, int | None, int | None], None]

LONG_PROMPT = 512  # tokens; a shorter one is read before a bar can be seen


class PromptBar:
    """How much of a long prompt is read, on a terminal, until the answer begins."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._show: Show | None = None

    def update(self, progress: Progress) -> None:
        if progress.total < LONG_PROMPT or not sys.stderr.isatty():
            return
        if self._show is None:
            self._show = self._open.enter_context(shown(True))
        self._show("reading the prompt", progress.processed * 100 // progress.total, 100)

    def close(self) -> None:
        """Nothing of it stays. Idempotent."""
        self._open.close()
        self._show = None


@contextmanager
def shown(bars: bool, *, lines: bool = True) -> Iterator[Show]:
    """A way to show (what, completed, total): as bars, as lines, or not at all."""
    if bars:
        with _bars() as show:
            yield show
        return
    said: set[str] = set()

    def say(status: str, _completed: int | None, _total: int | None) -> None:
        if lines and status not in said:
            said.add(status)
            click.echo(status, err=True)

    yield say


@contextmanager
def _bars() -> Iterator[Show]:
    """A bar a step on standard error, which disappear when the work is done."""
    from rich.console import Console  # rich takes 60 ms to import, which `list` need not pay
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks = {}

        def show(status: str, completed: int | None, total: int | None) -> None:
            if status not in tasks:
                tasks[status] = progress.add_task(status, total=total, amount="")
            amount = _amount(completed, total)
            progress.update(tasks[status], completed=completed or 0, total=total, amount=amount)

        yield show


def _amount(completed: int | None, total: int | None) -> str:
    if completed is None or not total:
        return ""
    if total == 100:
        return f"{completed} %"
    return f"{format_bytes(completed)} of {format_bytes(total)}"
