"""`python -m forerun.importer`: one import request on standard input, events on standard output.

Standard output belongs to the events alone: whatever a library prints goes to standard error.
Standard input closing means that the parent is gone; the process then ends at once (RUN-14).
"""

import _thread
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import BinaryIO

from forerun.base import logs
from forerun.base.errors import ForerunError, internal, one_line
from forerun.importer.progress import Reporter
from forerun.protocol.codec import decode_import_request
from forerun.protocol.events import Failed
from forerun.protocol.imports import Imported, PullRequest
from forerun.settings import Settings

log = logs.logger(__name__)

TRIES, TRY_S = 4, 0.5  # to end in good order after the parent is gone


class Stopped(BaseException):
    """Nobody waits for this import any more."""


def main() -> int:
    reporter = Reporter(_take_stdout())
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    event: Imported | Failed
    try:
        event = _serve(sys.stdin.buffer, reporter)
    except (Stopped, BrokenPipeError):
        os._exit(1)  # at once: taking torch apart needs longer than all the rest
    except ForerunError as error:
        event = Failed(status=error.status, message=one_line(error))
    except Exception as error:
        log.exception("the import failed")
        event = Failed(status=500, message=f"the import failed: {internal(error)}")
    return _end(reporter, event)


def _serve(stdin: BinaryIO, reporter: Reporter) -> Imported:
    settings = Settings.from_environment()
    logs.configure(settings.log or "warning", settings.log_format)
    request = decode_import_request(stdin.readline())
    threading.Thread(target=_watch, args=(stdin.fileno(),), daemon=True).start()
    # Only now, so that a bad request is answered at once.
    from forerun.importer.create import create
    from forerun.importer.pull import pull
    from forerun.store.names import ModelName
    from forerun.store.store import Store

    store = Store(settings.models)
    if isinstance(request, PullRequest):
        digest = pull(ModelName.parse(request.name), store, reporter)
    else:
        digest = create(request, store, reporter)
    return Imported(name=str(ModelName.parse(request.name)), digest=str(digest))


def _take_stdout() -> int:
    """A descriptor of standard output that nobody else knows; others now write to stderr."""
    events = os.dup(1)
    os.dup2(2, 1)
    return events


def _stop(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise Stopped


def _watch(stdin: int) -> None:
    """Wait for the parent's end, then stop the main thread: gently, and if it hangs by force.

    The descriptor is read and not the file, whose lock would hang the interpreter at its end. More
    than one try, because an exception that strikes inside a destructor is lost.
    """
    while os.read(stdin, 1):
        continue
    for _ in range(TRIES):
        _interrupt_main()
        time.sleep(TRY_S)
    os._exit(1)


def _interrupt_main() -> None:
    """Wake the main thread also from a system call that it waits in, where there is a way to."""
    if sys.platform == "win32":
        _thread.interrupt_main(signal.SIGTERM)
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _end(reporter: Reporter, event: Imported | Failed) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # a parent that has its answer may go at once
    try:
        reporter.send(event)
    except BrokenPipeError:
        log.warning("nobody heard how the import ended: %s", event)
    return 0 if isinstance(event, Imported) else 1


if __name__ == "__main__":
    sys.exit(main())
