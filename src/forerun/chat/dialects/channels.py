"""An answer's raw text to its channels: thinking, text and tool calls, in order (spec 08 PAR-1)."""

from dataclasses import dataclass

from forerun.chat.dialects.pieces import CallParser, Piece
from forerun.chat.dialects.registry import CallNotation
from forerun.chat.dialects.thinking import Opening, ThinkingParser
from forerun.chat.dialects.tools import Tools


class Channels:
    """The parser of one answer; the laws are those of `CallParser`."""

    def __init__(self, thinking: ThinkingParser | None, calls: CallParser | None) -> None:
        self._thinking = thinking
        self._calls = calls

    def push(self, text: str) -> list[Piece]:
        if self._thinking is None:
            return self._with_calls([Piece(len(text), text=text)])
        return self._with_calls(self._thinking.push(text))

    def finish(self) -> list[Piece]:
        pieces = [] if self._thinking is None else self._with_calls(self._thinking.finish())
        return pieces if self._calls is None else pieces + self._calls.finish()

    def _with_calls(self, pieces: list[Piece]) -> list[Piece]:
        """All that comes after the first text is text, so nothing overtakes what is held here."""
        if self._calls is None:
            return pieces
        separated: list[Piece] = []
        for piece in pieces:
            separated += self._calls.push(piece.text) if piece.text else [piece]
        return separated


@dataclass(frozen=True, slots=True)
class ChannelPlan:
    """What is to be separated in one answer.

    opening  where thinking stands as the answer begins; None: thinking is not separated
    calls    how calls are written; None: they are not separated
    tools    of the request
    """

    opening: Opening | None
    calls: CallNotation | None
    tools: Tools

    def start(self) -> Channels:
        thinking = None if self.opening is None else ThinkingParser(self.opening)
        return Channels(thinking, None if self.calls is None else self.calls.parser(self.tools))
