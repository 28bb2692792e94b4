"""The code that runs a draft for one loaded model, and its session in one request (spec 03 DRF).

Laws
1. `committed` runs arrive in position order without a gap; a gap is an assertion error.
2. Whatever a session proposes, after `close` its own caches hold exactly the committed tokens
   (with a look-ahead of 1: their pairs), as if nothing had ever been proposed.
3. Rows that a session keeps past the call are clones (DRF-7).
4. Proposals change speed, never the distribution of the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from forerun.contract.cache import LayerCache
from forerun.contract.media import Layout, MediaItem


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """What a drafter learns of a request before prefill."""

    prompt: tuple[int, ...]  # effective tokens: media ranges hold their fold (02 KEY-1)
    slot: int  # the request's slot in the sampler
    layout: Layout | None = None
    media: tuple[tuple[int, int], ...] = ()  # position ranges [start, end), in order (LKP-2)


class DistributionRows(Protocol):
    """Rows of probabilities, as `sampling` defines them: sparse when `ids` is given."""

    @property
    def probs(self) -> Tensor:
        """[rows, columns] float32."""
        ...

    @property
    def ids(self) -> Tensor | None:
        """[rows, columns] int64 token of each column; None: column = token id."""
        ...


@dataclass(frozen=True, slots=True)
class Proposal:
    """Draft tokens and what each was drawn from. A proposal shorter than asked is normal."""

    tokens: Tensor  # [n] int64, n >= 1
    rows: DistributionRows  # n rows
    host_tokens: tuple[int, ...] | None = None  # the same ids, when the host knows them already


class DraftSession(Protocol):
    """A drafter at work on one request."""

    def committed(
        self,
        tokens: Sequence[int],
        conditioning: Tensor | None,
        position: int,
        media: Sequence[MediaItem] = (),
    ) -> None:
        """`tokens[i]` now stands at `position + i` in the target's caches.

        conditioning  [n, C] row i belongs to token i; None for a drafter that needs no rows
        """
        ...

    def settle(self, next_token: int) -> None:
        """Finish the open pair with the token that follows, then write all buffered rows."""
        ...

    def grade(self, current: int) -> int | None:
        """How sure a proposal behind `current` would be: below its drafter's `grades`, the surest
        last; None: it has nothing to propose. Asked at every token, so it costs next to nothing.
        """
        ...

    def propose(self, current: int, most: int) -> Proposal | None:
        """Up to `most` tokens to follow `current`; None: decode this round plainly."""
        ...

    def close(self) -> None:
        """Write buffered rows, drop held tensors. Called exactly once, on every exit path."""
        ...


class Drafter(Protocol):
    """Bound to a loaded model for as long as that is loaded."""

    @property
    def name(self) -> str:
        """What a request calls it: `model` or `lookup`."""
        ...

    @property
    def caches(self) -> Sequence[LayerCache | None]:
        """Caches it owns; they ride in the prefix cache beside the target's. Often empty."""
        ...

    @property
    def look_ahead(self) -> int:
        """1 if its state at position S needs token S + 1 (02 KEY-4), else 0."""
        ...

    @property
    def draft_limit(self) -> int:
        """Most tokens it can propose at once; 0: no limit of its own."""
        ...

    @property
    def grades(self) -> int:
        """Kinds of proposals, at least 1, each with a depth of its own."""
        ...

    @property
    def needs_rows(self) -> bool:
        """Whether `committed` must bring conditioning rows."""
        ...

    def open(self, request: DraftRequest) -> DraftSession:
        """Called after the caches were restored and before prefill."""
        ...
