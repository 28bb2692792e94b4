"""What the parsers share: text that is held back until it is decided."""

from abc import ABC, abstractmethod

from forerun.chat.dialects.pieces import Piece


class HeldText(ABC):
    """Text arrives at one end and is cut off, decided, at the other. Laws: `CallParser`."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> list[Piece]:
        self._held += text
        return self._pieces(final=False)

    def finish(self) -> list[Piece]:
        return self._pieces(final=True)

    @abstractmethod
    def _next(self, *, final: bool) -> Piece | None:
        """Decide on the start of what is held, which is not empty; None if more must come first.

        With `final` nothing more comes, and None is no answer. A piece of no characters only says
        to ask again.
        """

    def _pieces(self, *, final: bool) -> list[Piece]:
        pieces = []
        while self._held and (piece := self._next(final=final)) is not None:
            if piece.raw:
                pieces.append(piece)
        return pieces

    def _cut(self, length: int) -> str:
        cut, self._held = self._held[:length], self._held[length:]
        return cut

    def _silent(self, length: int) -> Piece:
        """Characters that say nothing: a tag, or newlines beside one."""
        return Piece(len(self._cut(length)))

    def _text(self, length: int) -> Piece:
        return Piece(length, text=self._cut(length))

    @property
    def _newlines(self) -> int:
        """How many the held text starts with."""
        return len(self._held) - len(self._held.lstrip("\n"))
