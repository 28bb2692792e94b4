"""What an answer turns out to say, piece by piece."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from forerun.protocol.events import Chunk
from forerun.protocol.requests import ToolCall


@dataclass(frozen=True, slots=True)
class Piece:
    """The next `raw` characters of an answer and what they say, in at most one of three ways.

    Tags and the newlines beside them say nothing.
    """

    raw: int
    thinking: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()


class CallParser(Protocol):
    """Separates tool calls from text.

    Laws
    1. Whatever pieces a text comes in, it says the same.
    2. The `raw` of all pieces, `finish` included, add up to the characters pushed.
    3. What is no whole valid call comes out as text, as it was written.
    """

    def push(self, text: str) -> list[Piece]:
        """What is certain now; the end of a text that may become a tag or a call is held back."""
        ...

    def finish(self) -> list[Piece]:
        """What was held back: the text ends here."""
        ...


def begun(text: str, tags: Iterable[str]) -> int:
    """The length of the longest end of `text` that begins one of `tags` and is not all of it."""
    return max((_begun(text, tag) for tag in tags), default=0)


def chunks(pieces: Sequence[Piece]) -> list[tuple[int, Chunk]]:
    """The pieces in as few chunks as the order inside a chunk allows, each with its `raw`.

    Always at least one, which may say nothing.
    """
    made = [(0, Chunk())]
    for piece in pieces:
        raw, chunk = made[-1]
        if piece.text and chunk.tool_calls:  # thinking only ever comes first
            raw, chunk = 0, Chunk()
            made.append((raw, chunk))
        chunk.thinking += piece.thinking
        chunk.text += piece.text
        chunk.tool_calls = [*chunk.tool_calls, *piece.calls]
        made[-1] = (raw + piece.raw, chunk)
    return made


def _begun(text: str, tag: str) -> int:
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-length:]):
            return length
    return 0
