"""A text as one vector (spec 08 API-13)."""

import threading
from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.nn.functional import normalize

from forerun.base.errors import CancelledError
from forerun.contract.batch import Batch
from forerun.contract.model import WIDEST_ROUND, CacheOptions
from forerun.engine.loaded import LoadedModel
from forerun.engine.pooling import Pool
from forerun.sampling.refusals import refuse_damaged


def embed(
    loaded: LoadedModel,
    tokens: Sequence[int],
    dimensions: int | None,
    cancelled: threading.Event,
) -> list[float]:
    """The final hidden states pooled as the checkpoint says, cut to `dimensions`, of length 1.

    The model's own caches are not touched: a conversation that they hold stays. Raises
    CancelledError before the first chunk and between chunks, DamagedModelError where it computes
    what is no number.
    """
    pool = Pool(loaded.pooling)
    for hidden in _hidden(loaded, tokens, cancelled):
        pool.add(hidden)
    vector: list[float] = normalize(pool.vector()[:dimensions], dim=0).tolist()
    refuse_damaged(sum(vector), "hidden states")  # NaN, where one of them is no finite number
    return vector


def _hidden(
    loaded: LoadedModel, tokens: Sequence[int], cancelled: threading.Event
) -> Iterator[Tensor]:
    """Rows [n, hidden], chunk by chunk.

    A text of several chunks has caches of its own, no larger than the text, for as long as it
    takes: memory is bounded by them and one chunk's activations.
    """
    model, chunk = loaded.model, loaded.chunk
    caches = None
    if len(tokens) > chunk:
        caches = model.new_caches(CacheOptions(len(tokens), slack=WIDEST_ROUND))
    try:
        for start in range(0, len(tokens), chunk):
            if cancelled.is_set():
                raise CancelledError("cancelled while texts were embedded")
            batch = Batch.of(tokens[start : start + chunk], start, model.facts.device)
            yield model.forward(batch, caches).hidden[0]
    finally:
        for cache in caches or ():  # else their memory waits for the garbage collector
            if cache is not None:
                cache.free()
