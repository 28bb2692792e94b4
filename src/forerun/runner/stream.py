"""Events of one request on their way from the device thread to their reader (spec 05 DEC-8)."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from forerun.base.errors import CancelledError
from forerun.base.units import KIB
from forerun.protocol.codec import encode
from forerun.protocol.events import Chunk, Done, Event, Failed


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """How far the device thread may run ahead of its reader, and for how long it waits."""

    events: int = 64
    size: int = 256 * KIB
    stall_s: float = 30.0


class EventStream:
    """One writer, one reader, each in a thread of its own.

    A full stream makes the writer wait. A reader that takes nothing for the stall limit, or that
    closes, cancels the request.
    """

    def __init__(self, limits: StreamLimits | None = None) -> None:
        self.cancelled = threading.Event()
        self.waited_s = 0.0
        self._limits = limits or StreamLimits()
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._size = 0
        self._ended = False
        self._wake: Callable[[], None] = lambda: None
        self._woken = False  # and not found empty since: waking the reader would only cost time

    @property
    def ended(self) -> bool:
        """Whether the last event is there, taken or not."""
        return self._ended

    def put(self, event: Event) -> None:
        """Raises CancelledError once nobody reads. The last event is a Done or a Failed."""
        last = isinstance(event, Done | Failed)
        size = len(encode(event))
        with self._changed:
            assert not self._ended, "one Done or Failed ends a request"
            if not last:
                self._wait_for_room()
            self._ended = last
            self._events.append(event)
            self._size += size
            self._changed.notify_all()
            asleep, self._woken = not self._woken, True
        if asleep or last:
            self._wake()

    def take(self) -> list[Event]:
        """All events there are, neighbouring chunks as one; never waits.

        A reader that finds nothing is woken by the next event; one that finds something is expected
        to come again by itself.
        """
        with self._changed:
            taken, self._events, self._size = self._events, [], 0
            self._woken = bool(taken)
            self._changed.notify_all()
        return _joined(taken)

    def on_event(self, wake: Callable[[], None]) -> None:
        """Call `wake` in the writer's thread once there is something to take, and once now.

        After a `take` that found nothing the next event calls it again, and the last one always.
        """
        self._wake = wake
        wake()

    def cancel(self) -> None:
        """The reader is gone."""
        with self._changed:
            self.cancelled.set()
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Event]:
        """Events until the last one, waiting for each."""
        ended = False
        while not ended:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._events))
            for event in self.take():
                ended = isinstance(event, Done | Failed)
                yield event

    def _wait_for_room(self) -> None:
        started = time.monotonic()
        while not self.cancelled.is_set() and self._full():
            if not self._changed.wait(self._limits.stall_s) and self._full():
                self.cancelled.set()
        self.waited_s += time.monotonic() - started
        if self.cancelled.is_set():
            raise CancelledError("nobody reads the answer any more")

    def _full(self) -> bool:
        return len(self._events) >= self._limits.events or self._size >= self._limits.size


def _joins(chunk: Chunk, following: Chunk) -> bool:
    """Whether the order of channels inside one chunk is that of both."""
    if following.thinking and (chunk.text or chunk.tool_calls):
        return False
    return not (following.text and chunk.tool_calls)


def _joined(events: list[Event]) -> list[Event]:
    joined: list[Event] = []
    for event in events:
        previous = joined[-1] if joined else None
        if isinstance(event, Chunk) and isinstance(previous, Chunk) and _joins(previous, event):
            joined[-1] = Chunk(
                thinking=previous.thinking + event.thinking,
                text=previous.text + event.text,
                tool_calls=previous.tool_calls + event.tool_calls,
                tokens=previous.tokens + event.tokens,
                logprobs=previous.logprobs + event.logprobs,
            )
        else:
            joined.append(event)
    return joined
