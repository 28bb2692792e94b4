"""Typed reading of JSON documents, with errors that name the document and the field."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from forerun.base.errors import ForerunError, StoreError
from forerun.base.json_types import JsonObject, JsonValue
from forerun.base.shown import shown


def parse_json(
    data: bytes, where: str, error: type[ForerunError] = StoreError, *, unique: bool = False
) -> JsonValue:
    """The document in `data`; with `unique`, keys repeated in one object are an error."""
    try:
        document: JsonValue = json.loads(
            data, object_pairs_hook=_without_repeats if unique else None
        )
    except (ValueError, RecursionError) as reason:
        raise error(f"{where} is not valid JSON: {reason}") from None
    return document


def _without_repeats(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in values if names.count(name) > 1)
        raise ValueError(f"{shown(repeated)} stands twice in one object")
    return values


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object whose fields are asked for by name and type; `where` starts every message."""

    values: JsonObject
    where: str
    error: type[ForerunError] = StoreError

    @classmethod
    def parse(
        cls,
        data: bytes,
        where: str,
        error: type[ForerunError] = StoreError,
        *,
        unique: bool = False,
    ) -> "Fields":
        """The object that `data` is; `unique` as in `parse_json`."""
        document = parse_json(data, where, error, unique=unique)
        if not isinstance(document, dict):
            raise error(f"{where} is not a JSON object")
        return cls(document, where, error)

    def text(self, name: str) -> str:
        """A string that must be there."""
        value = self.values.get(name)
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def optional_text(self, name: str) -> str:
        """A string, "" where the field is absent or null."""
        return self.text(name) if self.values.get(name) is not None else ""

    def count(self, name: str) -> int:
        """A whole number, 0 or more."""
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.wrong(name, "a whole number, 0 or more")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings, empty where the field is absent or null."""
        items = self.values.get(name)
        if items is None:
            return ()
        if not isinstance(items, list):
            raise self.wrong(name, "a list of strings")
        texts = tuple(item for item in items if isinstance(item, str))
        if len(texts) < len(items):
            raise self.wrong(name, "a list of strings")
        return texts

    def fields(self, name: str) -> "Fields":
        """An object that must be there."""
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return Fields(value, f"{self.where}: {name}", self.error)

    def list_of_fields(self, name: str) -> list["Fields"]:
        """A list of objects that must be there."""
        items = self.values.get(name)
        if not isinstance(items, list):
            raise self.wrong(name, "a list of objects")
        found = []
        for index, item in enumerate(items):
            if not isinstance(item, dict):
                raise self.wrong(name, "a list of objects")
            found.append(Fields(item, f"{self.where}: {name}[{index}]", self.error))
        return found

    def only(self, names: Iterable[str]) -> None:
        """Refuse fields other than `names`, for documents that forerun alone writes."""
        unknown = sorted(set(self.values) - set(names))
        if unknown:
            raise self.error(f"{self.where}: unknown field {shown(unknown[0])}")

    def wrong(self, name: str, wanted: str) -> ForerunError:
        """The error for a field that is not what it must be."""
        if name not in self.values:
            return self.error(f"{self.where}: {name} is missing; it must be {wanted}")
        return self.error(f"{self.where}: {name} is {shown(self.values[name])}, not {wanted}")
