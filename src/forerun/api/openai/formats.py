"""How the answer must look, to the protocol's format (spec 08 OAI-2)."""

from forerun.api.bodies import WireStruct
from forerun.base.errors import RequestError
from forerun.base.shown import shown
from forerun.protocol.requests import JsonValue


class JsonSchema(WireStruct):
    schema: dict[str, JsonValue] | None = None


class ResponseFormat(WireStruct):
    type: str
    json_schema: JsonSchema | None = None


def read_format(given: ResponseFormat | None) -> JsonValue:
    """ "json", a schema, or None for any text. RequestError for what is neither."""
    if given is None:
        return None
    named = given.json_schema
    return format_of(given.type, None if named is None else named.schema, "response_format")


def format_of(kind: str, schema: dict[str, JsonValue] | None, where: str) -> JsonValue:
    """The same for a format whose kind and schema have been found in it."""
    if kind == "text":
        return None
    if kind == "json_object":
        return "json"
    if kind != "json_schema":
        raise RequestError(
            f"{where}.type is {shown(kind)}; it must be text, json_object or json_schema"
        )
    if schema is None:
        raise RequestError(f"{where} of type json_schema lacks its schema")
    return schema
