"""Messages to bytes and back: JSON, one line each where several follow one another."""

from typing import TypeVar

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
        return msgspec.json.decode(data, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"malformed message: {error}") from None
    except RecursionError:
        raise RequestError("malformed message: nested too deeply") from None
