"""What a person recognises a cached stretch of tokens by: its words, without the template's."""

import re
from collections.abc import Sequence
from itertools import groupby

from forerun.tokenizer.tokenizer import Tokenizer

FIRST_FOLD = 1 << 31  # what stands for an image or recording is no token id (KEY-2)
LONGEST = 120  # characters
MEDIA = "[media]"
ELLIPSIS = " \u2026 "

_ROLE = re.compile(r"\s*(system|developer|user|assistant|model|tool|ipython)\s*(\n|$)")


def text_of(first: Sequence[int], last: Sequence[int], tokenizer: Tokenizer) -> str:
    """Both ends of a stretch on one line, at most `LONGEST` characters.

    first  the stretch's first tokens, or all of them
    last   its last ones, where there are more than these two
    """
    head, tail = _words(first, tokenizer), _words(last, tokenizer)
    if not last and len(head) <= LONGEST:
        return head
    half = (LONGEST - len(ELLIPSIS)) // 2
    return f"{_beginning(head, half)}{ELLIPSIS}{_end(tail if last else head, half)}".strip()


def _beginning(text: str, length: int) -> str:
    """At most so many characters, in whole words where there are any."""
    return text if len(text) <= length else text[: length + 1].rpartition(" ")[0] or text[:length]


def _end(text: str, length: int) -> str:
    return text if len(text) <= length else text[-length - 1 :].partition(" ")[2] or text[-length:]


def _words(tokens: Sequence[int], tokenizer: Tokenizer) -> str:
    """The text, white space collapsed, without control tokens and the role that follows one."""

    def kind(token: int) -> str:
        if token >= FIRST_FOLD:
            return MEDIA
        return "control" if token in tokenizer.control_ids else ""

    said, after_control = [], False
    for found, run in groupby(tokens, kind):
        if found == MEDIA:
            said.append(MEDIA)
        elif not found:
            text = tokenizer.decode(run).strip("\ufffd")  # half a character at either end
            role = _ROLE.match(text) if after_control else None
            said.append(text[role.end() :] if role else text)
        after_control = found == "control"
    return " ".join(" ".join(said).split())
