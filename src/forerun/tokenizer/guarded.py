"""Encodes trusted and untrusted text as one, so that users cannot type control tokens (TOK-2)."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tokenizers import Encoding
from tokenizers import Tokenizer as Library

from forerun.base.spans import Span
from forerun.tokenizer.files import AddedToken
from forerun.tokenizer.masked import build_masked, make_sentinels


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """A control token that a trusted span spells, at characters [start, end) of the whole text."""

    start: int
    end: int
    content: str


class GuardedEncoder:
    """Encodes spans with a library tokenizer, matching control tokens in trusted spans only.

    The library encodes the whole text. If every control token it found lies in one trusted span,
    that is the answer; so ids equal the library's unless untrusted text spells one. If it does, or
    one formed across spans, the trusted ones are replaced by sentinels and the tokenizer's masked
    twin encodes the text: cut at trusted control tokens, never at the border of a span.
    """

    def __init__(self, library: Library, controls: Sequence[AddedToken]) -> None:
        self._library = library
        self._contents = {token.id: token.content for token in controls}
        self._sentinels = make_sentinels(list(self._contents.values()))
        longest_first = sorted(map(re.escape, self._sentinels), key=len, reverse=True)
        self._spelled = re.compile("|".join(longest_first) or "(?!)")
        self._twin: Library | None = None

    def encode(self, spans: Sequence[Span]) -> list[int]:
        """The ids of the spans' joined text, which must be well-formed Unicode."""
        text = "".join(span.text for span in spans)
        if any(not span.trusted and self._spelled.search(span.text) for span in spans):
            return self._masked_ids(text, list(self._occurrences(spans)))
        encoding = _encoded(self._library, text)
        if self._all_trusted(encoding, spans):
            return encoding.ids
        return self._masked_ids(text, list(self._occurrences(spans)))

    def _all_trusted(self, encoding: Encoding, spans: Sequence[Span]) -> bool:
        """Whether each control token that the library found lies in one trusted span.

        With it the whitespace that it swallowed: so the answer may be no for a token that is meant,
        which costs time only.
        """
        ends = list(accumulate(len(span.text) for span in spans))
        for _, start, end in self._matched(encoding):
            index = min(bisect_right(ends, start), len(spans) - 1)
            if not spans[index].trusted or end > ends[index]:
                return False
        return True

    def _matched(self, encoding: Encoding) -> Iterator[tuple[str, int, int]]:
        """The control tokens of an encoding and the characters each stands for."""
        places = [i for i, token_id in enumerate(encoding.ids) if token_id in self._contents]
        if places:
            ids, offsets = encoding.ids, encoding.offsets
            yield from ((self._contents[ids[place]], *offsets[place]) for place in places)

    def _occurrences(self, spans: Sequence[Span]) -> Iterator[_Occurrence]:
        offset = 0
        for span in spans:
            if span.trusted:
                for match in self._spelled.finditer(span.text):
                    start, end = match.span()
                    yield _Occurrence(offset + start, offset + end, match.group())
            offset += len(span.text)

    def _masked_ids(self, text: str, occurrences: Sequence[_Occurrence]) -> list[int]:
        """Encode `text` with a sentinel for each occurrence.

        A sentinel may stay unmatched where the library would not match the control token either
        (it must stand alone and does not, a normaliser changes its surroundings, a longer added
        token covers it): such an occurrence gets its own spelling back, and the text is encoded
        again.
        """
        if self._twin is None:
            self._twin = build_masked(self._library, self._sentinels)
        while True:
            masked, starts = self._substitute(text, occurrences)
            encoding = _encoded(self._twin, masked)
            matched = self._sentinel_starts(masked, encoding)
            kept = [o for o, start in zip(occurrences, starts, strict=True) if start in matched]
            if len(kept) == len(occurrences):
                return encoding.ids
            occurrences = kept

    def _substitute(self, text: str, occurrences: Sequence[_Occurrence]) -> tuple[str, list[int]]:
        pieces: list[str] = []
        starts: list[int] = []
        position = length = 0
        for occurrence in occurrences:
            before = text[position : occurrence.start]
            sentinel = self._sentinels[occurrence.content]
            pieces += [before, sentinel]
            starts.append(length + len(before))
            length += len(before) + len(sentinel)
            position = occurrence.end
        pieces.append(text[position:])
        return "".join(pieces), starts

    def _sentinel_starts(self, masked: str, encoding: Encoding) -> set[int]:
        return {
            masked.find(self._sentinels[content], start, end)
            for content, start, end in self._matched(encoding)
        }


def _encoded(library: Library, text: str) -> Encoding:
    """As `library.encode`, which holds up every other thread until it is done."""
    (encoding,) = library.encode_batch([text], add_special_tokens=False)
    return encoding
