"""A text as one vector (spec 08 API-13)."""

from collections.abc import Sequence

from torch.nn.functional import normalize

from forerun.contract.batch import Batch
from forerun.engine.loaded import LoadedModel


def embed(loaded: LoadedModel, tokens: Sequence[int], dimensions: int | None) -> list[float]:
    """The mean of the final hidden states, cut to `dimensions`, of length 1.

    The caches are not touched: a conversation that they hold stays.
    """
    batch = Batch.of(tokens, 0, loaded.model.facts.device)
    mean = loaded.model.forward(batch, None).hidden[0].float().mean(0)
    vector: list[float] = normalize(mean[:dimensions], dim=0).tolist()
    return vector
