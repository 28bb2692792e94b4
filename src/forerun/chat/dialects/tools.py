"""The tools of a request, as far as reading calls needs them, and the calls that come of it."""

import json
import secrets
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from forerun.base.json_types import JsonObject, JsonValue
from forerun.protocol.requests import ToolCall

MAX_DEPTH = 100  # of arguments; what writes them down again must not fail either
_LETTERS = string.ascii_lowercase + string.digits


@dataclass(frozen=True, slots=True)
class Tools:
    """The schemas of each tool's parameters, by name."""

    parameters: Mapping[str, JsonObject]

    @classmethod
    def of(cls, tools: Sequence[Mapping[str, JsonValue]]) -> "Tools":
        """From function tools as requests have them; what is malformed has no schema."""
        found: dict[str, JsonObject] = {}
        for tool in tools:
            wrapped = tool.get("function")
            function = wrapped if isinstance(wrapped, dict) else tool
            name = function.get("name")
            if isinstance(name, str):
                found[name] = _object(_object(function.get("parameters")).get("properties"))
        return cls(found)

    def types(self, name: str, parameter: str) -> frozenset[str]:
        """The JSON types that a parameter may have; none if its schema does not say."""
        return frozenset(_types(self.parameters.get(name, {}).get(parameter)))


def make_call(name: JsonValue, arguments: JsonValue) -> ToolCall | None:
    """A call under a new id; None for arguments that are no object or cannot be written as JSON."""
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    if not (_shallow(arguments, MAX_DEPTH) and _writable([name, arguments])):
        return None
    suffix = "".join(secrets.choice(_LETTERS) for _ in range(8))
    return ToolCall(id=f"call_{suffix}", name=name, arguments=arguments)


def _object(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def _types(schema: JsonValue) -> Iterator[str]:
    """Its own types and those of the schemas it offers a choice of."""
    stated = _object(schema).get("type")
    for each in stated if isinstance(stated, list) else [stated]:
        if isinstance(each, str):
            yield each
    for choice in ("anyOf", "oneOf"):
        offered = _object(schema).get(choice)
        for each in offered if isinstance(offered, list) else []:
            stated = _object(each).get("type")
            if isinstance(stated, str):
                yield stated


def _shallow(value: JsonValue, depth: int) -> bool:
    if isinstance(value, dict | list):
        items = value.values() if isinstance(value, dict) else value
        return depth > 0 and all(_shallow(item, depth - 1) for item in items)
    return True


def _writable(value: JsonValue) -> bool:
    """Half a surrogate, which JSON can spell, is no text; infinity is no JSON."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True
