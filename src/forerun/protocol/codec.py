"""Messages to bytes and back: JSON, one line each where several follow one another."""

from types import UnionType
from typing import Any, TypeVar

import msgspec

from forerun.base.errors import RequestError
from forerun.protocol.events import Event
from forerun.protocol.imports import ImportEvent, ImportRequest
from forerun.protocol.training import TrainEvent

T = TypeVar("T")


def encode(message: msgspec.Struct) -> bytes:
    """One message as JSON.

    Raises RequestError for text that is no Unicode (half a surrogate) and for endless nesting.
    """
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError as error:
        shown = ascii(error.object[error.start : error.end])
        raise RequestError(f"the text holds {shown}, which is not valid UTF-8") from None
    except RecursionError:
        raise RequestError("the message is nested too deeply; flatten it") from None


def encode_line(message: msgspec.Struct) -> bytes:
    """One message as a JSON line, newline included."""
    return encode(message) + b"\n"


def decode(data: bytes | str, kind: type[T]) -> T:
    """A message of type `kind`. Raises RequestError naming the field that is wrong."""
    message: T = _decode(data, kind)
    return message


def build(value: object, kind: type[T]) -> T:
    """A message of type `kind` out of plain dictionaries and lists. Raises as `decode` does."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise RequestError(f"malformed message: {error}") from None
    except RecursionError:
        raise RequestError("malformed message: nested too deeply") from None


def decode_event(data: bytes | str) -> Event:
    """One line of a runner's answer."""
    event: Event = _decode(data, Event)
    return event


def decode_import_request(data: bytes | str) -> ImportRequest:
    """What an importer is asked for."""
    request: ImportRequest = _decode(data, ImportRequest)
    return request


def decode_import_event(data: bytes | str) -> ImportEvent:
    """One line of what an importer reports."""
    event: ImportEvent = _decode(data, ImportEvent)
    return event


def decode_train_event(data: bytes | str) -> TrainEvent:
    """One line of what a training process reports."""
    event: TrainEvent = _decode(data, TrainEvent)
    return event


def _decode(data: bytes | str, kind: type | UnionType) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"malformed message: {error}") from None
    except RecursionError:
        raise RequestError("malformed message: nested too deeply") from None
