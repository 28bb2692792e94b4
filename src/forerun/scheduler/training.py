"""Runs a training process over one head and passes on what it reports."""

from collections.abc import Generator

from forerun.base.errors import RunnerError, error_for
from forerun.protocol.codec import decode_train_event, encode_line
from forerun.protocol.events import Failed
from forerun.protocol.training import TrainedHead, TrainRequest, TrainStatus
from forerun.scheduler.process import ChildProcess, ChildSettings

MODULE = "forerun.training"


def run_training(
    request: TrainRequest, settings: ChildSettings
) -> Generator[TrainStatus | TrainedHead, None, None]:
    """The progress, the last event `TrainedHead`. A failure is raised.

    Closing the generator kills the process; the same request continues where it stopped.
    """
    child = ChildProcess(MODULE, (), environment=settings.environment())
    try:
        child.send(encode_line(request))
        for line in child.lines():
            event = decode_train_event(line)
            if isinstance(event, Failed):
                raise error_for(event.status, event.message)
            yield event
            if isinstance(event, TrainedHead):
                return
        raise RunnerError(f"the training ended: {child.last_error()}; run it again to go on")
    finally:
        child.close()
