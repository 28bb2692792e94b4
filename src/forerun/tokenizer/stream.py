"""Puts token bytes together to whole characters, and keeps what belongs to them beside them."""

import codecs
from collections import deque
from typing import Generic, TypeVar

Entry = TypeVar("Entry")


class CharacterStream(Generic[Entry]):
    """Bytes in, text out, never half a character (spec 05 UTF-1..4, DEC-9).

    Joined, the pushed texts are `bytes.decode(errors="replace")` of all bytes without a cut
    character at the end: a byte that can never be valid becomes U+FFFD. An entry pushed with some
    bytes (a token's log-probabilities) comes out, in order, with the text that completes them.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pushed = 0
        self._waiting: deque[tuple[int, Entry]] = deque()  # (offset its bytes end at, entry)

    def push(self, data: bytes, *entries: Entry) -> tuple[str, list[Entry]]:
        """The characters that are whole now, and the entries whose bytes are all out."""
        text = self._decoder.decode(data)
        self._pushed += len(data)
        self._waiting.extend((self._pushed, entry) for entry in entries)
        incomplete, _ = self._decoder.getstate()
        out = self._pushed - len(incomplete)
        ready: list[Entry] = []
        while self._waiting and self._waiting[0][0] <= out:
            ready.append(self._waiting.popleft()[1])
        return text, ready

    def finish(self) -> list[Entry]:
        """Drop an incomplete character (UTF-3); the entries that waited for it."""
        self._decoder.reset()
        left = [entry for _, entry in self._waiting]
        self._waiting.clear()
        return left
