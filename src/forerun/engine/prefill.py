"""Evaluates a prompt, chunk by chunk, all but its last token (spec 05 PRE)."""

from forerun.base.errors import CancelledError
from forerun.base.logs import logger
from forerun.contract.batch import Batch
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.prefix.session import Session

log = logger(__name__)


def prefill(loaded: LoadedModel, session: Session, job: Job) -> None:
    """Bring the caches from the restored prefix to one token before the prompt's end.

    Raises CancelledError between chunks; what was evaluated by then stays in the caches.
    """
    tokens, position = session.tokens, session.cached
    last = len(tokens) - 1
    while position < last:
        if job.cancelled.is_set():
            raise CancelledError("cancelled while the prompt was evaluated")
        chunk = tokens[position : min(position + loaded.chunk, last)]
        loaded.model.forward(Batch.of(chunk, position, loaded.model.facts.device), loaded.caches)
        position += len(chunk)
        job.sink.prefilled(position)
        log.info("prefill processed=%d total=%d", position, len(tokens))
