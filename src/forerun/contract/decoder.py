"""How tokens come out of a loaded model after prefill (spec 05 DEC; plain, or speculative).

Laws
1. The tokens of all runs, in order, are what plain decoding with the same options would give:
   the same ids at temperature 0 or with a seed, the same distribution otherwise.
2. After `close` the target's caches hold every token handed out or drained, except the last one:
   a token is forwarded when the one after it is asked for, or not at all.
3. A run may be longer than `remaining`; cutting it is the decode loop's business (RND-13).
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of a token under the target, after grammar and bias (spec 04 LGP)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token, logprob), most likely first


@dataclass(frozen=True, slots=True)
class Run:
    """Tokens of one round in order. `logprobs` holds one entry a token if they were asked for."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    drafted: int = 0
    accepted: int = 0


class Decoder(Protocol):
    """Opened after prefill with the prompt's last token, which is the first current token."""

    def next(self, remaining: int) -> Run:
        """The next tokens; an empty run says that no token is allowed and the text is complete."""
        ...

    def drain(self) -> tuple[int, ...]:
        """Tokens drawn and not handed out; they belong in the record of the sequence (DEC-4)."""
        ...

    def close(self) -> None:
        """Leave caches and drafters level with what was handed out. Called exactly once."""
        ...
