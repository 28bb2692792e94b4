"""Runs the app on a TCP port until it is told to end."""

import asyncio
import socket

import uvicorn

from forerun.api.app import make_app
from forerun.api.metrics import Metrics
from forerun.api.services import Services
from forerun.base.address import Address
from forerun.base.errors import RequestError
from forerun.base.logs import logger
from forerun.scheduler.scheduler import Scheduler, SchedulerLimits
from forerun.settings import Settings
from forerun.store.store import Store

log = logger(__name__)

FAREWELL_S = 5  # how long answers may finish once the server has been told to end


def listen(address: Address) -> socket.socket:
    """A listening socket. RequestError where the address is taken or is none of this machine's."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise RequestError(
            f"cannot listen at {address}: {error.strerror or error}; is a server running already? "
            "FORERUN_HOST sets another address"
        ) from None
    return listener


def serve(settings: Settings, listener: socket.socket) -> None:
    """Answer until a signal ends the process; every runner is gone then."""
    asyncio.run(_serve(settings, listener))


async def _serve(settings: Settings, listener: socket.socket) -> None:
    store = Store(settings.models)
    limits = SchedulerLimits(
        keep_alive_s=settings.keep_alive_s,
        max_queue=settings.max_queue,
        max_loaded=settings.max_loaded_models,
        load_stall_s=settings.load_timeout_s,
        gpu_overhead=settings.gpu_overhead,
    )
    services = Services(store, Scheduler(store, settings, limits), settings, Metrics())
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(services),
            loop="asyncio",
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=FAREWELL_S,
        )
    )
    await server.serve(sockets=[listener])
