"""The types of a decoded JSON document."""

from typing import TypeAlias

JsonValue: TypeAlias = (
    "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"  # what JSON holds
)
JsonObject: TypeAlias = dict[str, JsonValue]
