"""Messages that a model puts before every chat (spec 07 MF-3)."""

from dataclasses import dataclass
from typing import Final

from forerun.base.errors import StoreError
from forerun.base.json_types import JsonValue
from forerun.store.fields import Fields, parse_json
from forerun.store.manifest import encode_json

ROLES: Final = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a Modelfile; `role` is one of ROLES."""

    role: str
    content: str


def encode_messages(messages: tuple[Message, ...]) -> bytes:
    """The bytes of a messages layer."""
    documents: list[JsonValue] = [{"role": m.role, "content": m.content} for m in messages]
    return encode_json(documents)


def decode_messages(data: bytes, where: str) -> tuple[Message, ...]:
    """The messages of a layer; StoreError naming what is wrong."""
    document = parse_json(data, where)
    if not isinstance(document, list):
        raise StoreError(f"{where} is not a list of messages")
    listed = Fields({"messages": document}, where).list_of_fields("messages")
    return tuple(Message(_role(fields), fields.text("content")) for fields in listed)


def _role(fields: Fields) -> str:
    role = fields.text("role")
    if role not in ROLES:
        raise fields.wrong("role", "one of " + ", ".join(ROLES))
    return role
