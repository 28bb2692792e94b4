"""What the engine tells the bound drafter, in every session, drafting or not (spec 03 GEN-3)."""

from collections.abc import Sequence

from forerun.contract.drafter import Drafter, DraftRequest, DraftSession
from forerun.contract.model import Forward


class Follower:
    """A drafter's session in one request; where none is bound, nothing is told."""

    def __init__(self, session: DraftSession | None, *, needs_rows: bool) -> None:
        self._session, self._needs_rows = session, needs_rows

    @classmethod
    def open(cls, drafter: Drafter | None, request: DraftRequest) -> "Follower":
        """After the caches were restored, before prefill."""
        if drafter is None:
            return cls(None, needs_rows=False)
        return cls(drafter.open(request), needs_rows=drafter.needs_rows)

    def committed(self, tokens: Sequence[int], forward: Forward, position: int) -> None:
        """`forward` has written `tokens` into the target's caches, from `position` on (DRF-2)."""
        if self._session is not None:
            rows = forward.conditioning[0] if self._needs_rows else None
            self._session.committed(tokens, rows, position)

    def settle(self, next_token: int) -> None:
        """`next_token` follows what is committed: the drafter's caches are level now (DRF-3)."""
        if self._session is not None:
            self._session.settle(next_token)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
