"""What a change of the store means for the models that are loaded."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from starlette.concurrency import run_in_threadpool

from forerun.api.errors import unexpected
from forerun.api.services import Services
from forerun.base.errors import ForerunError, one_line
from forerun.base.logs import event, logger
from forerun.protocol.imports import Imported, ImportRequest, ImportStatus
from forerun.scheduler.importing import follow_import
from forerun.store.blobs import Digest
from forerun.store.names import ModelName
from forerun.store.store import Store

log = logger(__name__)


@asynccontextmanager
async def changing(services: Services, name: ModelName) -> AsyncIterator[None]:
    """A change of what `name` stands for: a loaded model that lost its last name is unloaded."""
    before = await run_in_threadpool(services.store.digest, name)
    yield
    if before is not None and not await run_in_threadpool(_is_named, services.store, before):
        await services.scheduler.forget(before)


async def imported(
    services: Services, name: ModelName, request: ImportRequest
) -> AsyncGenerator[ImportStatus, None]:
    """Run an import of `name`; it has ended well when this ends without an error.

    Every outcome is one line in the log.
    """
    model = str(name)
    try:
        async with (
            changing(services, name),
            aclosing(follow_import(request, services.children)) as steps,
        ):
            async for step in steps:
                if isinstance(step, Imported):
                    event(log, "imported", model=model, digest=step.digest)
                else:
                    yield step
    except Exception as error:
        told = error if isinstance(error, ForerunError) else unexpected(error)
        event(log, "import failed", model=model, status=told.status, error=one_line(told))
        raise
    except BaseException:  # closed, or its task was cancelled
        event(log, "import cancelled", model=model)
        raise


def _is_named(store: Store, digest: Digest) -> bool:
    return any(entry.digest == digest for entry in store.entries())
