"""The model that a native request names."""

from forerun.api.bodies import WireStruct
from forerun.base.errors import RequestError
from forerun.store.names import ModelName


class NamedRequest(WireStruct):
    """Older clients call the field `name`."""

    model: str | None = None
    name: str | None = None

    def model_name(self) -> ModelName:
        """RequestError where there is none, or none that can be."""
        return parse_name("model", self.model or self.name)


def parse_name(field: str, text: str | None) -> ModelName:
    """The name in a field that must be there."""
    if not text:
        raise RequestError(f"{field} is missing; it must be the name of a model")
    return ModelName.parse(text)
