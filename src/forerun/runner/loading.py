"""Loads a model into a service: its text in the calling thread, the rest in the device thread.

Imports of torch happen in the device thread, beside the work of the calling one.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from forerun.base.logs import event, logger
from forerun.engine.thread import DeviceThread
from forerun.runner.request import LoadRequest
from forerun.runner.text import load_text
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel

if TYPE_CHECKING:
    from forerun.engine.loaded import LoadedModel
    from forerun.runner.service import Service

Progress = Callable[[str, float], None]  # what is going on, and the fraction of the load done

log = logger(__name__)


def load(
    request: LoadRequest, thread: DeviceThread, progress: Progress = lambda _what, _done: None
) -> "Service":
    """The service that answers for `request.name`. `progress` is called in the device thread.

    Raises NotFoundError, StoreError or LoadError saying what is wrong and where.
    """
    started = time.monotonic()
    stored = Store(request.models).get(ModelName.parse(request.name))
    loading = thread.submit(lambda: _load_engine(stored, request, progress))
    text = load_text(stored)
    engine = loading.result()
    from forerun.engine.memory import release_freed
    from forerun.runner.service import ServedModel, Service

    device = engine.model.facts.device
    thread.submit(lambda: release_freed(device)).result()
    seconds = time.monotonic() - started
    service = Service(ServedModel(engine, text, seconds), thread)
    service.refresh().result()
    event(log, "loaded", model=request.name, context=engine.context, seconds=seconds)
    return service


def load_here(request: LoadRequest) -> "Service":
    """A service with a device thread of its own, in the caller's process. Raises as `load` does."""
    thread = DeviceThread(threads=request.threads)
    try:
        return load(request, thread)
    except BaseException:
        thread.close()
        raise


def _load_engine(stored: StoredModel, request: LoadRequest, progress: Progress) -> "LoadedModel":
    from forerun.runner.compose import load_engine

    return load_engine(stored, request, progress)
