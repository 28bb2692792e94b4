"""What an importer tells its parent: status lines, with bytes where bytes are counted."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from forerun.protocol.codec import encode_line
from forerun.protocol.imports import ImportEvent, ImportStatus

INTERVAL_S = 0.1


@dataclass(slots=True)
class Reporter:
    """Writes events to a file descriptor that nothing else writes to."""

    descriptor: int
    clock: Callable[[], float] = time.monotonic
    interval_s: float = INTERVAL_S
    _silent_until: float = field(default=0.0, init=False)

    def send(self, event: ImportEvent) -> None:
        data = memoryview(encode_line(event))
        while data:
            data = data[os.write(self.descriptor, data) :]

    def status(self, text: str) -> None:
        """Say what begins now."""
        self._silent_until = 0.0
        self.send(ImportStatus(status=text))

    def bytes_done(self, text: str, completed: int, total: int) -> None:
        """How far it is; between the first and the last one every `interval_s` at most."""
        now = self.clock()
        if now < self._silent_until and completed < total:
            return
        self._silent_until = now + self.interval_s
        self.send(ImportStatus(status=text, completed=completed, total=total))


@dataclass(slots=True)
class Meter:
    """Counts bytes of one step towards a total."""

    reporter: Reporter
    text: str
    total: int
    completed: int = 0

    def advance(self, count: int) -> None:
        if not count:
            return
        self.completed += count
        self.reporter.bytes_done(self.text, self.completed, self.total)
