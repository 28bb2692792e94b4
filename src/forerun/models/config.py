"""Typed reading of a checkpoint's config.json.

A family asks for each field by name and type; what is missing, of another type or out of range is
a LoadError that names the field and its value. JSON null counts as absent, as publishers mean it.
"""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from forerun.base.errors import LoadError

Fields = Mapping[str, object]

LARGEST_SIZE = 2**24
# Fields of which published models have more, or none comes near it.
LARGEST = {
    "max_position_embeddings": 2**31,
    "num_hidden_layers": 10_000,
    "sliding_window": 2**31,
    "vocab_size": 2**26,
}


@dataclass(frozen=True, slots=True)
class ConfigReader:
    """One JSON object of a config, and the objects around it that answer where it is silent."""

    fields: Fields
    place: str = ""  # "text_config." for a nested object: what error messages put before a name
    outer: "ConfigReader | None" = None

    def text(self) -> "ConfigReader":
        """The language model's part of the config: `text_config` before the top level."""
        nested = self.section("text_config")
        return self if nested is None else nested

    def section(self, name: str) -> "ConfigReader | None":
        """A nested object that falls back on this one; None where there is none."""
        place, value = self._find(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(place, value, "an object")
        return ConfigReader(value, f"{place}.", self)

    def with_defaults(self, defaults: Fields) -> "ConfigReader":
        """The same, where `defaults` answer for what the config leaves out."""
        last = ConfigReader(defaults)
        outer = last if self.outer is None else self.outer.with_defaults(defaults)
        return ConfigReader(self.fields, self.place, outer)

    def merged(self) -> dict[str, object]:
        """All fields that are not null as one flat object, the innermost winning."""
        around = {} if self.outer is None else self.outer.merged()
        own = {name: value for name, value in self.fields.items() if value is not None}
        own.pop("text_config", None)  # whoever reads from it began inside
        return {**around, **own}

    def architecture(self) -> str:
        """What the model is: the first entry of `architectures`."""
        named = self.words("architectures")
        if not named:
            raise LoadError("config.json names no architecture in `architectures`; import it again")
        return named[0]

    def has(self, name: str) -> bool:
        return self._find(name)[1] is not None

    def integer(self, name: str, default: int | None = None, *, low: int = 1) -> int:
        """A whole number from `low` to its LARGEST. Without a default the field is required."""
        place, stated = self._find(name, default)
        whole = int(stated) if isinstance(stated, float) and stated.is_integer() else stated
        high = LARGEST.get(name, LARGEST_SIZE)
        if isinstance(whole, bool) or not isinstance(whole, int) or not low <= whole <= high:
            raise self._wrong(place, stated, f"a whole number from {low} to {high}")
        return whole

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0. Without a default the field is required."""
        place, value = self._find(name, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value <= sys.float_info.max
        ):
            raise self._wrong(place, value, "a number above 0")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return self.number(name) if self.has(name) else None

    def flag(self, name: str, default: bool | None = None) -> bool:
        place, value = self._find(name, default)
        if not isinstance(value, bool):
            raise self._wrong(place, value, "true or false")
        return value

    def word(self, name: str, default: str) -> str:
        place, value = self._find(name, default)
        if not isinstance(value, str):
            raise self._wrong(place, value, "a string")
        return value

    def words(self, name: str) -> tuple[str, ...] | None:
        """A list of strings; None where the field is absent."""
        place, value = self._find(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self._wrong(place, value, "a list of strings")
        return tuple(value)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """A list of whole numbers of either sign; None where the field is absent."""
        place, value = self._find(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(number) is int for number in value):
            raise self._wrong(place, value, "a list of whole numbers")
        return tuple(value)

    def only(self, name: str, default: str, served: Collection[str]) -> str:
        """A word that picks code, one of `served` (CON-14)."""
        word = self.word(name, default)
        if word not in served:
            raise self._wrong(self._find(name)[0], word, f"one of {', '.join(sorted(served))}")
        return word

    def only_words(self, name: str, served: Collection[str]) -> None:
        """Stop at a list of words that pick code unless each is one of `served` (CON-14)."""
        words = self.words(name)
        if words is not None and not set(words) <= set(served):
            raise self._wrong(self._find(name)[0], words, f"a list of {', '.join(served)}")

    def refuse(self, name: str, *, unless: Collection[object] = (False,)) -> None:
        """Stop at a field that would change the numbers and is not implemented (CON-14)."""
        place, value = self._find(name)
        if value is None or value in unless:
            return
        raise LoadError(
            f"config.json sets {place} to {value!r}; that is not implemented, and ignoring it "
            "would change the output"
        )

    def _find(self, name: str, default: object = None) -> tuple[str, object]:
        """Where the field stands, for messages, and its value; the innermost object wins."""
        reader: ConfigReader | None = self
        while reader is not None:
            value = reader.fields.get(name)
            if value is not None:
                return f"{reader.place}{name}", value
            reader = reader.outer
        return f"{self.place}{name}", default

    def _wrong(self, place: str, value: object, allowed: str) -> LoadError:
        if value is None:
            return LoadError(f"config.json has no {place}; it must be {allowed}")
        return LoadError(f"config.json sets {place} to {value!r}; it must be {allowed}")
