"""One request at the caches: where it may start, and what it leaves behind (spec 02 BEG, CLO)."""

from types import TracebackType
from typing import TYPE_CHECKING

from forerun.base.errors import DamagedModelError, ForerunError
from forerun.prefix.captures import PendingCapture
from forerun.prefix.keys import MediaRange

if TYPE_CHECKING:
    from forerun.prefix.prefix_cache import PrefixCache


class Session:
    """Closed in every outcome by leaving its `with`."""

    def __init__(
        self,
        prefix: "PrefixCache",
        tokens: tuple[int, ...],
        media: tuple[MediaRange, ...],
        *,
        cached: int,
        matched: int,
    ) -> None:
        self._prefix = prefix
        self._media = media
        self.tokens = tokens
        self.cached = cached  # leading tokens that need no evaluation
        self.matched = matched  # keys found, restorable or not
        self.outputs: list[int] = []  # every token drawn, handed out or not (KEY-7)

    @property
    def pending(self) -> tuple[PendingCapture, ...]:
        """What the prefill still has to capture."""
        return self._prefix.pending

    def attach(self) -> None:
        """Store what the prefill captured, once it is complete and the drafter has settled."""
        self._prefix.attach(self.tokens, self._media)

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, DamagedModelError):  # a prompt that begins alike would begin with it
            self._prefix.recover(error, kept=self.cached)
            return
        if error is not None and not isinstance(error, ForerunError):
            self._prefix.recover(error)
            return
        try:
            self._prefix.close((*self.tokens, *self.outputs), self._media)
        except BaseException as broken:
            self._prefix.recover(broken)
            raise
