"""The `format` field: nothing, JSON, or a schema that the answer keeps to (D13)."""

import json

from forerun.base.errors import RequestError
from forerun.base.shown import shown
from forerun.protocol.requests import JsonValue

JSON = "json"


def read_format(given: JsonValue) -> JsonValue:
    """None, "json" or a schema; some clients send a schema as text. RequestError for others."""
    if given is None or given == "":
        return None
    schema = _parsed(given) if isinstance(given, str) else given
    if schema != JSON and not isinstance(schema, dict):
        raise RequestError(f'format is {shown(given)}; it must be "json" or a JSON schema')
    return schema


def _parsed(text: str) -> JsonValue:
    """The text itself where it is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
