"""One TCP connection of the server: uvicorn's, with limits on how long its client may dawdle."""

import asyncio
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

HEAD_S = 20.0  # in which a request's head must have come
UNREAD_S = 30.0  # longest wait for a client that reads nothing of what ends its connection


class BoundedConnection(H11Protocol):
    """Closed when no answer is under way and no whole request head comes for `HEAD_S`.

    Otherwise heads that come byte by byte, and bodies sent on after their request was refused,
    hold their places for ever. So does a client that no longer reads: closing waits until the rest
    is sent, so it is cut off when none of it goes out for `UNREAD_S`.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._deadline: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        self._next_look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()
        self._look_at_unread()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is malformed behind a request that is being answered has no answer of its own."""
        if self.cycle is None or not self.cycle.response_started:
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _wait_for_head(self) -> None:
        self._cancel()
        self._deadline = self.loop.call_later(HEAD_S, self._too_slow)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    def _too_slow(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _look_at_unread(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread and unread == self._unread_bytes and self.transport.is_closing():
            self.transport.abort()
            return
        self._unread_bytes = unread
        self._next_look = self.loop.call_later(UNREAD_S, self._look_at_unread)
