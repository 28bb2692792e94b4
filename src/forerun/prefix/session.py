"""One request's use of the live caches: where it may start, and what they hold afterwards.

The caches hold one sequence. `begin` finds how much of it a prompt shares and rewinds to there;
the end of a session records what they hold by then (spec 02 BEG, SWI-2, CLO).
"""

from collections.abc import Sequence
from types import TracebackType

from forerun.base.errors import ForerunError
from forerun.base.logs import logger
from forerun.contract.cache import LayerCache

log = logger(__name__)


class PrefixCache:
    """Belongs to a loaded model, whose caches it rewinds; touched only from the device thread."""

    def __init__(self, caches: Sequence[LayerCache | None]) -> None:
        self._caches = tuple(cache for cache in caches if cache is not None)
        self._held: tuple[int, ...] = ()  # the tokens in the caches, as many as their offset

    def begin(self, tokens: Sequence[int]) -> "Session":
        """Rewind to what the caches share with `tokens`, keeping one token to evaluate (BEG-2)."""
        matched = min(_common_length(self._held, tokens), len(tokens) - 1)
        cached = matched if self._rewound(matched) else 0
        self._held = tuple(tokens[:cached])
        log.debug(
            "%s total=%d matched=%d cached=%d left=%d",
            *("hit" if cached else "miss", len(tokens), matched, cached, len(tokens) - cached),
        )
        return Session(self, tuple(tokens), cached)

    def record(self, tokens: Sequence[int]) -> None:
        """The caches now hold the beginning of `tokens`, as far as all of them reach."""
        offset = min((cache.offset for cache in self._caches), default=0)
        assert offset <= len(tokens), f"caches at {offset}, only {len(tokens)} tokens recorded"
        if self._rewound(offset):
            self._held = tuple(tokens[:offset])

    def forget(self) -> None:
        """Empty the caches: nobody knows what they hold (contract/model law 2)."""
        for cache in self._caches:
            cache.free()
        self._held = ()

    def _rewound(self, offset: int) -> bool:
        """Whether all caches rest at `offset`; if one cannot go there, all are emptied (SWI-5)."""
        level = bool(self._caches) and all(cache.restore(None, offset) for cache in self._caches)
        if not level:
            self.forget()
        return level


class Session:
    """One request at the caches, closed in every outcome by leaving its `with`."""

    def __init__(self, prefix: PrefixCache, tokens: tuple[int, ...], cached: int) -> None:
        self._prefix = prefix
        self.tokens = tokens
        self.cached = cached  # leading tokens that need no evaluation
        self.outputs: list[int] = []  # every token drawn, handed out or not (KEY-7)

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or isinstance(error, ForerunError):
            self._prefix.record((*self.tokens, *self.outputs))
        else:
            self._prefix.forget()


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
