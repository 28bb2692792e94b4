"""What each token is in bytes, read off tokenizer.json's decoder (spec 06 TOK-3).

The library decodes whole sequences to text. Streaming needs the bytes of one token, so that a
character split over tokens can be put together again; joined, they are the library's text. One
difference is meant: where byte tokens (`<0xE3>`) do not form valid UTF-8 the library shows one
replacement mark a byte, and the joined bytes keep what is valid among them.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forerun.base.errors import LoadError
from forerun.base.json_types import JsonObject, JsonValue
from forerun.tokenizer.files import TOKENIZER

Step = Callable[[str, bool], str]  # a token's text and whether it begins the sequence
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class TokenDecoder:
    """How a token's text becomes bytes.

    `strip_text` is dropped from the start of a whole sequence, up to `strip_count` times.
    """

    steps: tuple[Step, ...] = ()
    byte_level: bool = False
    byte_fallback: bool = False
    strip_text: bytes = b""
    strip_count: int = 0

    def token_bytes(self, text: str, *, first: bool) -> bytes:
        """The bytes of the token `text`; `first` if no token stands before it."""
        for step in self.steps:
            text = step(text, first)
        if self.byte_level:
            return _byte_level_bytes(text)
        byte = BYTE_TOKEN.fullmatch(text) if self.byte_fallback else None
        return bytes.fromhex(byte[1]) if byte else text.encode()


class SequenceDecoder:
    """The bytes of one sequence, token by token: knows what only the first token loses."""

    def __init__(self, decoder: TokenDecoder) -> None:
        self._decoder = decoder
        self._first = True
        self._strips_left = decoder.strip_count

    def push(self, text: str) -> bytes:
        data = self._decoder.token_bytes(text, first=self._first)
        self._first = False
        while self._strips_left and data.startswith(self._decoder.strip_text):
            data = data[len(self._decoder.strip_text) :]
            self._strips_left -= 1
        if data:
            self._strips_left = 0
        return data


def read_decoder(definition: JsonValue) -> TokenDecoder:
    """The decoder that tokenizer.json defines. Raises LoadError naming a kind unknown here."""
    parts = _parts(definition)
    kinds = [part.get("type") for part in parts]
    fused = kinds.index("Fuse") if "Fuse" in kinds else len(parts)
    steps = tuple(_step(part) for part in parts[:fused] if part.get("type") not in BYTES)
    strip_text, strip_count = _leading_strip(parts[fused + 1 :])
    return TokenDecoder(
        steps=steps,
        byte_level="ByteLevel" in kinds,
        byte_fallback="ByteFallback" in kinds,
        strip_text=strip_text,
        strip_count=strip_count,
    )


BYTES = ("ByteLevel", "ByteFallback")


def _parts(definition: JsonValue) -> list[JsonObject]:
    if not isinstance(definition, dict):
        raise LoadError(f"{TOKENIZER} defines no decoder; import the model from another source")
    if definition.get("type") != "Sequence":
        return [definition]
    listed = definition.get("decoders")
    parts = listed if isinstance(listed, list) else []
    return [part for part in parts if isinstance(part, dict)]


def _step(part: JsonObject) -> Step:
    kind = part.get("type")
    if kind == "Metaspace":
        return _metaspace(part)
    if kind == "Replace":
        return _replace(part)
    if kind == "Strip":
        return _strip(part)
    raise _unsupported(part)


def _metaspace(part: JsonObject) -> Step:
    mark = _text(part, "replacement")
    keeps_first = part.get("prepend_scheme") == "never" or part.get("add_prefix_space") is False
    return lambda text, first: text.replace(mark, "" if first and not keeps_first else " ")


def _replace(part: JsonObject) -> Step:
    pattern, content = part.get("pattern"), _text(part, "content")
    literal = pattern.get("String") if isinstance(pattern, dict) else None
    if not isinstance(literal, str) or not literal:
        raise _unsupported(part)
    return lambda text, _: text.replace(literal, content)


def _strip(part: JsonObject) -> Step:
    mark, start, stop = _text(part, "content"), _count(part, "start"), _count(part, "stop")

    def strip(text: str, _: bool) -> str:
        kept = text[min(start, len(text) - len(text.lstrip(mark))) :]
        return kept[: len(kept) - min(stop, len(kept) - len(kept.rstrip(mark)))]

    return strip


def _leading_strip(parts: Sequence[JsonObject]) -> tuple[bytes, int]:
    """What comes after Fuse sees the sequence as one text; only a strip of its start can stream."""
    if not parts:
        return b"", 0
    part = parts[0]
    if len(parts) > 1 or part.get("type") != "Strip" or _count(part, "stop"):
        raise _unsupported(part)
    return _text(part, "content").encode(), _count(part, "start")


def _text(part: JsonObject, key: str) -> str:
    value = part.get(key)
    if not isinstance(value, str):
        raise _unsupported(part)
    return value


def _count(part: JsonObject, key: str) -> int:
    value = part.get(key)
    if not isinstance(value, int):
        raise _unsupported(part)
    return value


def _unsupported(part: JsonObject) -> LoadError:
    return LoadError(
        f"{TOKENIZER}: decoder {part} cannot be streamed; "
        "supported are ByteLevel, ByteFallback, Metaspace, Replace, Fuse and Strip at the start"
    )


def _alphabet() -> dict[str, int]:
    """GPT-2's map between bytes and printable characters, backwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {chr(byte): byte for byte in printable}
    return characters | {chr(256 + place): byte for place, byte in enumerate(others)}


ALPHABET = _alphabet()


def _byte_level_bytes(text: str) -> bytes:
    """A text with any character outside the alphabet stands for itself (an added token)."""
    data = [ALPHABET.get(character) for character in text]
    known = [byte for byte in data if byte is not None]
    return bytes(known) if len(known) == len(data) else text.encode()
