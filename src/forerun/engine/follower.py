"""What the engine tells the drafters of a request, drafting or not (spec 03 GEN-3)."""

from collections.abc import Callable, Sequence

from forerun.contract.drafter import Drafter, DraftRequest, DraftSession
from forerun.contract.model import Forward


class Follower:
    """The sessions of one request's drafters; where there are none, nobody is told anything."""

    def __init__(self) -> None:
        self._drafters: list[Drafter] = []
        self._sessions: list[DraftSession] = []

    @classmethod
    def open(cls, drafters: Sequence[Drafter], request: DraftRequest) -> "Follower":
        """After the caches were restored, before prefill."""
        follower = cls()
        try:
            for drafter in drafters:
                follower._sessions.append(drafter.open(request))
                follower._drafters.append(drafter)
        except BaseException:
            follower.close()
            raise
        return follower

    def session(self, drafter: Drafter) -> DraftSession:
        return self._sessions[self._drafters.index(drafter)]

    def committed(self, tokens: Sequence[int], forward: Forward, position: int) -> None:
        """`forward` has written `tokens` into the target's caches, from `position` on (DRF-2).

        Its further rows, of drafts that were refused, belong to no token.
        """
        for session, drafter in zip(self._sessions, self._drafters, strict=True):
            rows = forward.conditioning[0, : len(tokens)] if drafter.needs_rows else None
            session.committed(tokens, rows, position)

    def settle(self, next_token: int) -> None:
        """`next_token` follows what is committed: the drafters' caches are level now (DRF-3)."""
        for session in self._sessions:
            session.settle(next_token)

    def close(self) -> None:
        """Each session once, also where another one's end fails."""
        _all([session.close for session in reversed(self._sessions)])


def _all(calls: Sequence[Callable[[], None]]) -> None:
    if calls:
        try:
            calls[0]()
        finally:
            _all(calls[1:])
