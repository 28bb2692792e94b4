"""Thinking between `<think>` and `</think>`, at the start of an answer (spec 08 PAR-1..3).

Newlines right after `<think>`, right before `</think>` and between `</think>` and what follows
belong to neither: templates write them back when a turn returns as history. Other whitespace does.
A `<think>` in the middle of an answer is text. An answer that ends inside is all thinking.
"""

from collections.abc import Sequence
from typing import Literal

from forerun.base.spans import Span
from forerun.chat.dialects.held import HeldText
from forerun.chat.dialects.pieces import Piece, begun

OPEN, CLOSE = "<think>", "</think>"
THINKING_TAGS = (OPEN, CLOSE)

# Where an answer begins: before anything, after a block that the prompt closed, right after a tag
# that the prompt opened, in the middle of thinking, or in the middle of text.
Opening = Literal["start", "closed", "opened", "inside", "text"]


def opening_after(prompt: Sequence[Span]) -> Opening:
    """How the answer to a rendered prompt begins: its trusted end tells (PAR-2)."""
    if not prompt or not prompt[-1].trusted:
        return "start"
    return _border(prompt[-1].text) or "start"


def opening_within(written: str) -> Opening:
    """How a continued message goes on from what of it is `written`."""
    inside = written.rfind(OPEN) > written.rfind(CLOSE)
    return _border(written) or ("inside" if inside else "text")


def _border(text: str) -> Opening | None:
    end = text.rstrip()
    if end.endswith(OPEN):
        return "opened"
    return "closed" if end.endswith(CLOSE) else None


class ThinkingParser(HeldText):
    """Separates thinking from text. Once a piece says text, all that follows is text."""

    def __init__(self, opening: Opening) -> None:
        super().__init__()
        self._state: Opening = opening

    def _next(self, *, final: bool) -> Piece | None:
        if self._state in ("start", "closed"):
            return self._at_border(final=final)
        if self._state == "opened":
            newlines = self._newlines
            self._state = "inside" if newlines < len(self._held) else "opened"
            return self._silent(newlines)
        return self._think(final=final) if self._state == "inside" else self._text(len(self._held))

    def _at_border(self, *, final: bool) -> Piece | None:
        """Where a tag may open; newlines wait, for they are text where none did before."""
        newlines = self._newlines
        if self._held.startswith(OPEN, newlines):
            self._state = "opened"
            return self._silent(newlines + len(OPEN))
        if OPEN.startswith(self._held[newlines:]) and not final:
            return None
        closed, self._state = self._state == "closed", "text"
        return self._silent(newlines) if closed else self._text(len(self._held))

    def _think(self, *, final: bool) -> Piece | None:
        end = self._held.find(CLOSE)
        if end < 0 and final:
            return self._thinking(len(self._held))
        certain = len(self._held) - begun(self._held, [CLOSE]) if end < 0 else end
        said = len(self._held[:certain].rstrip("\n"))
        if said:
            return self._thinking(said)
        if end < 0:
            return None
        self._state = "closed"
        return self._silent(end + len(CLOSE))

    def _thinking(self, length: int) -> Piece:
        return Piece(length, thinking=self._cut(length))
