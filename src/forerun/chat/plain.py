"""Plain JSON types: all that a template may see of a request (spec 06 TMP-2)."""

from collections.abc import Mapping

from forerun.base.errors import RequestError
from forerun.base.json_types import JsonObject, JsonValue
from forerun.base.shown import shown


def plain(value: object, where: str) -> JsonValue:
    """A copy of `value` made of plain JSON types only; `where` names it in errors.

    Subclasses are reduced to their base type: whatever methods they have, a template cannot call
    them. Raises RequestError for anything else.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, list | tuple):
        return [plain(item, where) for item in value]
    if isinstance(value, Mapping):
        return plain_object(value, where)
    kind = type(value).__name__
    raise RequestError(f"{where} holds a value of type {kind}; send plain JSON values only")


def plain_object(value: object, where: str) -> JsonObject:
    """As `plain`, for what must be an object."""
    if not isinstance(value, Mapping):
        raise RequestError(f"{where} is {shown(value)}; it must be an object")
    if not all(isinstance(key, str) for key in value):
        raise RequestError(f"{where} has a key that is no string; send plain JSON values only")
    return {str.__str__(key): plain(item, where) for key, item in value.items()}
