"""Messages to bytes and back: JSON, one line each where several follow one another."""

from functools import cache
from typing import Any, TypeVar

import msgspec

from forerun.base.errors import RequestError

T = TypeVar("T")


def encode(message: msgspec.Struct) -> bytes:
    """One message as JSON."""
    return msgspec.json.encode(message)


def encode_line(message: msgspec.Struct) -> bytes:
    """One message as a JSON line, newline included."""
    return msgspec.json.encode(message) + b"\n"


def decode(data: bytes | str, kind: type[T]) -> T:
    """A message of type `kind` (a struct or a union of tagged ones).

    Raises RequestError naming the field that is wrong.
    """
    try:
        return _decoder(kind).decode(data)  # type: ignore[no-any-return]
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"malformed message: {error}") from None
    except RecursionError:
        raise RequestError("malformed message: nested too deeply") from None


@cache
def _decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(kind)
