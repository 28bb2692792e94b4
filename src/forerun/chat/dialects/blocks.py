"""Tool calls in blocks between an opening and a closing tag (spec 08 PAR-1).

Newlines before and after a block that holds calls are not content. A block that holds none, or is
cut, is text with all its newlines: its opening tag is given out and the rest is read on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forerun.chat.dialects.held import HeldText
from forerun.chat.dialects.pieces import Piece, begun
from forerun.chat.dialects.tools import Tools
from forerun.protocol.requests import ToolCall


@dataclass(frozen=True, slots=True)
class Block:
    """One kind of block.

    read    the calls in a body, none if it is malformed
    whole   whether the body before a closing tag may end there, or the tag is within a value
    """

    opening: str
    closing: str
    read: Callable[[str, Tools], Sequence[ToolCall]]
    whole: Callable[[str], bool] = lambda _: True

    def end(self, text: str, start: int) -> int:
        """Where the closing tag of a body that starts at `start` begins; -1 if it is not there."""
        end = text.find(self.closing, start)
        while end >= 0 and not self.whole(text[start:end]):
            end = text.find(self.closing, end + 1)
        return end


class BlockParser(HeldText):
    """Finds the blocks of one notation."""

    def __init__(self, blocks: Sequence[Block], tools: Tools) -> None:
        super().__init__()
        self._blocks = tuple(blocks)
        self._openings = [block.opening for block in blocks]
        self._tools = tools
        self._after_call = False

    def _next(self, *, final: bool) -> Piece | None:
        if self._after_call:
            newlines = self._newlines
            self._after_call = newlines == len(self._held)
            return self._silent(newlines)
        found = [(self._held.find(block.opening), block) for block in self._blocks]
        found = [(start, block) for start, block in found if start >= 0]
        if not found:
            certain = len(self._held) if final else self._certain()
            return self._text(certain) if certain else None
        start, block = min(found, key=lambda each: each[0])
        before = len(self._held[:start].rstrip("\n"))
        return self._text(before) if before else self._block(start, block, final=final)

    def _certain(self) -> int:
        before = len(self._held) - begun(self._held, self._openings)
        return len(self._held[:before].rstrip("\n"))

    def _block(self, start: int, block: Block, *, final: bool) -> Piece | None:
        body = start + len(block.opening)
        end = block.end(self._held, body)
        if end < 0 and not final:
            return None
        calls = tuple(block.read(self._held[body:end], self._tools)) if end >= 0 else ()
        if not calls:
            return self._text(body)
        self._after_call = True
        whole = end + len(block.closing)
        return Piece(len(self._cut(whole)), calls=calls)
