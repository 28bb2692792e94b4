"""What an API dialect says of one answer, in its own words.

An object of this kind is made for one request and may keep what it needs from one event to the
next, such as ids and counts of tool calls.
"""

from typing import Protocol

from forerun.base.errors import ForerunError
from forerun.protocol.events import Chunk, Done, Progress
from forerun.scheduler.scheduler import Lease


class Dialect(Protocol):
    """One answer's wire form. Bytes are written as they are; empty ones are not written."""

    media_type: str  # of a stream

    def leased(self, lease: Lease) -> None:
        """The model is loaded: its name, status and load time are known from now on."""
        ...

    def event(self, event: Progress | Chunk) -> bytes:
        """A piece of the stream."""
        ...

    def quiet(self) -> bytes:
        """What is sent when nothing else was for a while, so that no timer fires (E19)."""
        ...

    def done(self, done: Done) -> bytes:
        """The end of a stream: final object, usage, end mark."""
        ...

    def failed(self, error: ForerunError) -> bytes:
        """The end of a stream that broke off (API-14)."""
        ...

    def whole(self, chunk: Chunk, done: Done) -> bytes:
        """The body of an answer that is not streamed: all its chunks as one."""
        ...

    def refusal(self, error: ForerunError) -> bytes:
        """The body of an error answered before the stream began."""
        ...
