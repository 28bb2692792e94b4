"""`python -m forerun.training`: one request on standard input, events on standard output.

Standard output belongs to the events alone. When standard input closes the parent is gone, and the
process ends at once: all that it has made is on disk but for the last minute's.
"""

import os
import sys
import threading

from forerun.base import logs
from forerun.base.errors import ForerunError, internal, one_line
from forerun.protocol.codec import decode, encode_line
from forerun.protocol.events import Failed
from forerun.protocol.training import TrainedHead, TrainEvent, TrainRequest, TrainStatus
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.training.trainable import check_trainable

log = logs.logger(__name__)


def main() -> int:
    events = os.dup(1)
    os.dup2(2, 1)  # what a library prints goes to standard error

    def send(event: TrainEvent) -> None:
        data = memoryview(encode_line(event))
        while data:
            data = data[os.write(events, data) :]

    event: TrainedHead | Failed
    try:
        settings = Settings.from_environment()
        logs.configure(settings.log or "warning", settings.log_format)
        request = decode(sys.stdin.buffer.readline(), TrainRequest)
        threading.Thread(target=_watch, args=(sys.stdin.fileno(),), daemon=True).start()
        check_trainable(Store(settings.models).get(ModelName.parse(request.name)))
        # only now, so that a bad request is answered at once
        from forerun.training.job import train_head

        event = train_head(request, settings, lambda *told: send(TrainStatus(*told)))
    except ForerunError as error:
        event = Failed(status=error.status, message=one_line(error))
    except Exception as error:
        log.exception("the training failed")
        event = Failed(status=500, message=f"the training failed: {internal(error)}")
    send(event)
    return 0 if isinstance(event, TrainedHead) else 1


def _watch(stdin: int) -> None:
    while os.read(stdin, 1):
        continue
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
