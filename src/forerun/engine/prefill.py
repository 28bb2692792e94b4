"""Evaluates a prompt, chunk by chunk, all but its last token (spec 05 PRE)."""

from forerun.base.errors import CancelledError
from forerun.base.logs import logger
from forerun.contract.batch import Batch
from forerun.engine.follower import Follower
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.prefix.session import Session

log = logger(__name__)


def prefill(loaded: LoadedModel, session: Session, job: Job, follower: Follower) -> None:
    """Bring the caches from the restored prefix to one token before the prompt's end.

    Raises CancelledError between chunks; what was evaluated by then stays in the caches. Drafters
    are settled before captures are attached, else their layers would be one token short (PRE-6).
    """
    tokens, position = session.tokens, session.cached
    last = len(tokens) - 1
    try:
        while position < last:
            if job.cancelled.is_set():
                raise CancelledError("cancelled while the prompt was evaluated")
            chunk = tokens[position : min(position + loaded.chunk, last)]
            batch = Batch.of(chunk, position, loaded.model.facts.device)
            forward = loaded.model.forward(batch, loaded.caches)
            follower.committed(chunk, forward, position)
            position += len(chunk)
            job.sink.prefilled(position)
            log.info(
                "prefill processed=%d total=%d cached=%d", position, len(tokens), session.cached
            )
    except CancelledError:  # of ours, or of a sink whose reader is gone
        follower.settle(tokens[position])  # CAN-1
        raise
    follower.settle(tokens[last])
    session.attach()
