"""The life of a runner process: load and listen at once, serve, end."""

import asyncio
import os
import socket
import sys
from typing import TYPE_CHECKING

import uvicorn

from forerun.base.errors import LAST_WORDS, ForerunError, internal, one_line
from forerun.base.logs import logger
from forerun.engine.thread import DeviceThread
from forerun.runner.app import make_app
from forerun.runner.request import LoadRequest
from forerun.runner.state import LoadState

if TYPE_CHECKING:
    from forerun.runner.service import Service

log = logger(__name__)

FAREWELL_S = 1  # how long streams may finish once the process has been told to end


class Runner:
    """The state of the load and, once it is over, the service; shared with the HTTP routes."""

    def __init__(self, request: LoadRequest) -> None:
        self.state = LoadState()
        self.service: Service | None = None
        self._request = request
        self._thread = DeviceThread(threads=request.threads, on_lost=end_at_once)

    async def run(self, listener: socket.socket) -> str:
        """Serve until told to end; returns why the load failed, "" if it did not."""
        server = uvicorn.Server(
            uvicorn.Config(
                make_app(self),
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=FAREWELL_S,
            )
        )
        loading = asyncio.create_task(asyncio.to_thread(self._load))
        loading.add_done_callback(lambda _: self._stop_if_failed(server))
        await server.serve(sockets=[listener])
        return self.state.status.reason

    def _load(self) -> None:
        """The border of the load: whatever goes wrong is the reason of a failed state."""
        try:
            from forerun.runner.loading import load

            self.service = load(self._request, self._thread, self.state.progress)
            self.state.ready(self.service.status())
        except ForerunError as error:
            self.state.fail(one_line(error), status=error.status)
        except Exception as error:
            log.exception("the load failed")
            self.state.fail(str(internal(error)), out_of_memory=_ran_out(error))

    def _stop_if_failed(self, server: uvicorn.Server) -> None:
        if self.state.status.state == "failed":
            server.should_exit = True


def _ran_out(error: Exception) -> bool:
    """Whether memory ran out, as far as errors say so: on a CPU torch raises a plain one."""
    if "torch" not in sys.modules:  # the load may have failed for want of it
        return isinstance(error, MemoryError)
    from torch import OutOfMemoryError

    return isinstance(error, OutOfMemoryError | MemoryError)


def end_at_once(error: BaseException) -> None:
    """THR-4: after a lost device no call can work; the reason is the last error line."""
    sys.stderr.write(f"{LAST_WORDS}the device is lost: {one_line(error)}\n")
    sys.stderr.flush()
    os._exit(1)
