"""The `details` of a model, as tags, show and ps say them (08 API-1, API-2)."""

from typing import Final

from forerun.api.bodies import WireStruct
from forerun.store.describe import describe
from forerun.store.stored import StoredModel

_STEPS: Final = ((10**9, "B"), (10**6, "M"), (10**3, "K"))


class Details(WireStruct, omit_defaults=False):
    """What kind of model it is. None and "" mean that the model does not say."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    context_length: int | None
    embedding_length: int | None


def details_of(stored: StoredModel) -> Details:
    """The details, remembered by digest; the first call reads every header, so not on the loop.

    StoreError if the model is damaged or was removed before its first call, LoadError if it has no
    config.json.
    """
    found = describe(stored)
    return Details(
        parent_model="",
        format=found.model_format,
        family=found.architecture,
        families=[found.architecture],
        parameter_size=format_count(found.parameters),
        quantization_level=found.quantisation,
        context_length=found.context_length,
        embedding_length=found.embedding_length,
    )


def format_count(count: int) -> str:
    """134515008 as "134.5M"."""
    for size, letter in _STEPS:
        if round(count / size, 1) >= 1:
            return f"{count / size:.1f}{letter}"
    return str(count)
