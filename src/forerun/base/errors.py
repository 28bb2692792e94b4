"""The errors a caller can act on. Anything else that is raised is a bug of ours.

Each message is one line that names the value and the remedy; `status` is what an HTTP dialect
answers with (spec 08 API-14).
"""

LAST_WORDS = "Error: "  # begins the line in which a child process says why it ends


class ForerunError(Exception):
    """Base of every deliberate error."""

    status = 500


class RequestError(ForerunError):
    """The caller asked for something that cannot be done; repeating it will not help."""

    status = 400


class TooLargeError(RequestError):
    """More bytes than a request may have."""

    status = 413


class NotFoundError(ForerunError):
    """A model, blob or file that is not there."""

    status = 404


class CancelledError(ForerunError):
    """The caller went away or asked to stop; nobody waits for an answer."""

    status = 499


class UnsupportedError(ForerunError):
    """Understood, and not offered; the message says what works instead."""

    status = 501


class BusyError(ForerunError):
    """There is no room now; the same request may succeed later."""

    status = 503


class LoadError(ForerunError):
    """A model cannot be loaded as it is; the message names the config field, tensor or file.

    Whoever made the model can mend it, and no machine loads it before.
    """

    status = 400


class MachineError(LoadError):
    """A load that fails here, and for all we know not because of the model: no such device, too
    little memory, a damaged store, a bug of ours.
    """

    status = 500


class DamagedModelError(ForerunError):
    """What a model computes is no number: its weights are damaged, or too large for their type."""


class ImportFailedError(ForerunError):
    """A pull or create could not finish; what was fetched so far stays for the next try."""


class StoreError(ForerunError):
    """The model store holds something that is not what its name or digest says."""


class RunnerError(ForerunError):
    """The process that runs a model failed or is gone; the message ends with its last error."""


STATUS_TO_ERROR: dict[int, type[ForerunError]] = {
    400: RequestError,
    404: NotFoundError,
    499: CancelledError,
    501: UnsupportedError,
    503: BusyError,
}


def one_line(error: BaseException) -> str:
    """The first line of what an error says, or its type: a torch error adds lines of advice."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def internal(error: BaseException) -> ForerunError:
    """What a caller is told of a bug of ours; the trace is in the log."""
    return ForerunError(f"internal error: {type(error).__name__}: {one_line(error)}")


def error_for(status: int, message: str) -> ForerunError:
    """The error that `status` stands for, after it crossed a process border."""
    return STATUS_TO_ERROR.get(status, ForerunError)(message)
