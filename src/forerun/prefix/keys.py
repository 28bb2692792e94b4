"""What a sequence is looked up by: one key for each token that the caches hold (spec 02 KEY)."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

LookAhead = Literal[0, 1]

_FIRST_FOLD = 1 << 31  # above every token id
_PAIR = 64  # bits of a pair key's second half

_folds: dict[bytes, int] = {}
_numbers = itertools.count(_FIRST_FOLD)


@dataclass(frozen=True, slots=True)
class MediaRange:
    """Prompt positions `[start, end)` that an image or recording fills."""

    start: int
    end: int
    fold: int  # stands for its content
    causal: bool  # False: its tokens see each other, so nothing may resume inside (MED-1)

    def strictly_holds(self, position: int) -> bool:
        return self.start < position < self.end


def fold(data: bytes, dims: Sequence[int]) -> int:
    """A number for this content, preprocessed to these sizes, and for no other in this process.

    It comes of a 16-byte hash, since images of two users must never meet (KEY-2). May be called
    from any thread.
    """
    content = blake2b(data, digest_size=16)
    for size in dims:
        content.update(size.to_bytes(8, "little"))
    return _folds.setdefault(content.digest(), next(_numbers))  # both atomic; a lost number is fine


def effective_tokens(tokens: Sequence[int], media: Sequence[MediaRange]) -> tuple[int, ...]:
    """The token at each position or, inside a media range, its fold (KEY-1)."""
    effective = list(tokens)
    for item in media:
        effective[item.start : item.end] = [item.fold] * (item.end - item.start)
    return tuple(effective)


def keys_of(effective: Sequence[int], look_ahead: LookAhead) -> tuple[int, ...]:
    """Tokens, or with a look-ahead of 1 each token with its successor, the last one left out.

    A chain draft's state at a position needs the token after it, so a match of k pairs, which
    verifies k + 1 tokens, is safe to restore for the draft's layers too (KEY-4, KEY-5).
    """
    if look_ahead == 0:
        return tuple(effective)
    return tuple((token << _PAIR) | after for token, after in itertools.pairwise(effective))


def token_of(key: int, look_ahead: LookAhead) -> int:
    """The effective token at a key's own position."""
    return key >> _PAIR if look_ahead else key
