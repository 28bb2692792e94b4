"""Runs an importer process over one pull or create and passes on what it reports."""

from collections.abc import Generator
from typing import Protocol

from forerun.base.errors import ImportFailedError, RunnerError, error_for
from forerun.protocol.codec import decode_import_event, encode_line
from forerun.protocol.events import Failed
from forerun.protocol.imports import Imported, ImportRequest, ImportStatus
from forerun.scheduler.process import ChildProcess


class ChildSettings(Protocol):
    """What a composition root hands down: its settings, as variables for a child."""

    def environment(self) -> dict[str, str]: ...


def run_import(
    request: ImportRequest, settings: ChildSettings
) -> Generator[ImportStatus | Imported, None, None]:
    """The importer's progress, the last event `Imported`. A failure is raised.

    Closing the generator kills the importer; the same request continues where it stopped.
    """
    child = ChildProcess("forerun.importer", (), environment=settings.environment())
    try:
        child.send(encode_line(request))
        for line in child.lines():
            event = decode_import_event(line)
            if isinstance(event, Failed):
                raise error_for(event.status, event.message)
            yield event
            if isinstance(event, Imported):
                return
        raise ImportFailedError(f"the importer failed: {child.last_error()}")
    except RunnerError as error:
        raise ImportFailedError(f"the importer failed: {error}") from None
    finally:
        child.close()
