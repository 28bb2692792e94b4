"""Runs the app on a TCP port until it is told to end."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from forerun import __version__
from forerun.api.app import make_app
from forerun.api.connections import BoundedConnection
from forerun.api.metrics import Metrics
from forerun.api.security import AccessRules
from forerun.api.services import Services
from forerun.base.address import Address
from forerun.base.errors import RequestError
from forerun.base.logs import adopt, event, logger
from forerun.scheduler.scheduler import Scheduler, SchedulerLimits
from forerun.settings import Settings
from forerun.store.store import Store

log = logger(__name__)

FAREWELL_S = 3.0  # how long answers may finish once the server has been told to end
CUT_S = 2  # in which those that then failed may say so
SPARE_CONNECTIONS = 128  # besides one for each request that may wait
HEAD_BYTES = 65536  # of a request line and its headers
MANY_FILES = 65536
ENDS = (signal.SIGINT, signal.SIGTERM)


def listen(address: Address) -> socket.socket:
    """A listening socket. RequestError where the address is taken or is none of this machine's."""
    listener: socket.socket | None = None
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        family, *_, where = min(found, key=lambda each: each[0] != socket.AF_INET)
        listener = socket.socket(family, socket.SOCK_STREAM)
        if os.name == "posix":  # elsewhere it lets two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(512)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise RequestError(
            f"cannot listen at {address}: {error.strerror or error}; is a server running already? "
            "FORERUN_HOST sets another address"
        ) from None
    return listener


def address_of(listener: socket.socket) -> Address:
    """Where it listens: the port that the system chose, where it was asked to."""
    host, port, *_ = listener.getsockname()
    return Address(host, port)


def serve(settings: Settings, listener: socket.socket) -> None:
    """Answer until a signal ends the process; every runner is gone then."""
    _allow_many_files()
    asyncio.run(_serve(settings, listener))


async def _serve(settings: Settings, listener: socket.socket) -> None:
    store = Store(settings.models)
    limits = SchedulerLimits(
        keep_alive_s=settings.keep_alive_s,
        max_queue=settings.max_queue,
        max_loaded=settings.max_loaded_models,
        load_stall_s=settings.load_timeout_s,
        gpu_overhead=settings.gpu_overhead,
        context_length=settings.context_length,
        device=settings.device,
    )
    scheduler = Scheduler(store, settings, limits)
    services = Services(store, scheduler, settings, Metrics())
    _adopt_logs(settings)
    about = {
        "address": address_of(listener).url,
        "store": str(settings.models),
        "version": __version__,
    }
    server = _Server(_config(services, settings), scheduler, about)
    try:
        await server.serve(sockets=[listener])
    finally:
        await services.close()
    log.info("ended")


def _config(services: Services, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(services, AccessRules.of(settings)),
        loop="asyncio",
        http=BoundedConnection,
        ws="none",
        lifespan="off",  # `_serve` closes the services, however hasty the end is
        log_config=None,
        access_log=settings.log == "debug",
        proxy_headers=False,
        server_header=False,
        limit_concurrency=settings.max_queue + SPARE_CONNECTIONS,
        timeout_graceful_shutdown=int(FAREWELL_S) + CUT_S,
        h11_max_incomplete_event_size=HEAD_BYTES,
    )


def _allow_many_files() -> None:
    """A request takes two: its own connection and one to its runner."""
    if os.name != "posix":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, MANY_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _Server(uvicorn.Server):
    """Ends in order: answers may finish, then fail, then every process is gone."""

    def __init__(self, config: uvicorn.Config, scheduler: Scheduler, about: dict[str, str]) -> None:
        """`about` is told once it serves."""
        super().__init__(config)
        self._scheduler = scheduler
        self._about = about

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own raises the signal again at the end, which makes an orderly end a crash."""
        former = {each: signal.signal(each, self.handle_exit) for each in ENDS}
        try:
            yield
        finally:
            for each, handler in former.items():
                signal.signal(each, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            event(log, "listening", **self._about)  # from now on a signal ends it in order

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("ending; answers have %g s", FAREWELL_S)
        farewell = asyncio.create_task(self._bid_farewell())
        try:
            await super().shutdown(sockets)
        finally:
            farewell.cancel()

    async def _bid_farewell(self) -> None:
        """Answers that are still under way fail when their runners are gone."""
        loop = asyncio.get_running_loop()
        over = loop.time() + FAREWELL_S
        while loop.time() < over and not self.force_exit:
            await asyncio.sleep(0.05)
        await self._scheduler.close()
        if self.force_exit:
            for connection in list(self.server_state.connections):
                connection.transport.abort()


def _adopt_logs(settings: Settings) -> None:
    """What uvicorn and asyncio report is ours to report."""
    level = "info" if settings.log == "debug" else "warning"
    for name in ("uvicorn", "asyncio"):
        adopt(name, level)
    logging.getLogger("uvicorn.error").addFilter(_is_no_cut)


def _is_no_cut(record: logging.LogRecord) -> bool:
    """An answer that is cut off at the end is no bug with a trace."""
    return record.exc_info is None or record.exc_info[0] is not asyncio.CancelledError
