"""The key-value part of a GGUF header, read by type."""

from collections.abc import Mapping
from dataclasses import dataclass

from forerun.base.errors import ImportFailedError

Scalar = int | float | bool | str
Value = Scalar | list[int | float | bool] | list[str]


@dataclass(frozen=True, slots=True)
class Metadata:
    """Every getter raises ImportFailedError naming file and key when the type is another one."""

    file: str
    values: Mapping[str, Value]

    def has(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str) -> str:
        return _is_text(self, key, self._required(key))

    def text_or(self, key: str, default: str | None) -> str | None:
        return self.text(key) if self.has(key) else default

    def whole(self, key: str) -> int:
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "a whole number")
        return value

    def whole_or(self, key: str, default: int) -> int:
        return self.whole(key) if self.has(key) else default

    def number(self, key: str) -> float:
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number")
        return float(value)

    def flag_or(self, key: str, default: bool) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._required(key)
        if not isinstance(value, list):
            raise self._wrong(key, "a list of texts")
        return [_is_text(self, key, item) for item in value]

    def wholes(self, key: str) -> list[int]:
        value = self._required(key)
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self._wrong(key, "a list of whole numbers")
        return [int(item) for item in value]

    def numbers(self, key: str) -> list[float]:
        value = self._required(key)
        if not isinstance(value, list) or any(isinstance(item, str) for item in value):
            raise self._wrong(key, "a list of numbers")
        return [float(item) for item in value]

    def _required(self, key: str) -> Value:
        if key not in self.values:
            raise ImportFailedError(f"{self.file} does not state {key}")
        return self.values[key]

    def _wrong(self, key: str, wanted: str) -> ImportFailedError:
        return ImportFailedError(f"{self.file}: {key} is not {wanted}")


def _is_text(metadata: Metadata, key: str, value: object) -> str:
    if not isinstance(value, str):
        raise ImportFailedError(f"{metadata.file}: {key} is not a text")
    return value
