"""Where a request's tokens go: the only thing of the outside that the engine sees.

The engine deals in token ids. Whoever prepared the request turns them into text, looks for stop
strings there and sends events on (spec 05 UTF, STP, DEC-8).

Laws
1. Calls come from the device thread, in this order: `started`, `prefilled` any number of times,
   `take` any number of times, then `finish` or `fail` exactly once.
2. `take` may wait for a slow reader, up to its stall limit; then, or when the reader is gone, it
   raises CancelledError, and the engine treats the request as cancelled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from forerun.base.errors import ForerunError
from forerun.contract.decoder import TokenLogprob

DoneReason = Literal["stop", "length", "load"]


@dataclass(frozen=True, slots=True)
class Drafting:
    """What the drafter of one request did (spec 03 STA). Rounds of depth 0 drafted nothing."""

    drafter: str  # `model`, `lookup` or `model+lookup`
    rounds: int  # all of them, those of depth 0 too
    drafted: int
    accepted: int
    by_position: tuple[tuple[int, int], ...]  # (accepted, observed) of a round's first draft, ...
    depths: tuple[tuple[float, int], ...]  # mean and largest depth in up to 8 equal spans


@dataclass(frozen=True, slots=True)
class Figures:
    """What a finished request cost. Seconds are wall time on the device thread."""

    prompt_tokens: int  # the whole prompt, cached or not
    cached_tokens: int
    generated_tokens: int
    prompt_seconds: float
    generation_seconds: float
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafting: Drafting | None = None  # None: nothing was drafted with, or the request said `off`


class TokenSink(Protocol):
    """One request's way out."""

    @property
    def waited_s(self) -> float:
        """How long calls have waited for a slow reader so far: no time of the model's (DEP-3)."""
        ...

    def started(self, prompt_tokens: int, cached_tokens: int) -> None: ...

    def prefilled(self, tokens: int) -> None:
        """`tokens` of the prompt are in the caches by now."""
        ...

    def take(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob]) -> int | None:
        """Tokens in order, stop tokens and those past the budget already cut off.

        Returns how many of them count if a stop string is complete by then, else None.
        """
        ...

    def finish(self, reason: DoneReason, figures: Figures) -> None: ...

    def fail(self, error: ForerunError) -> None: ...
