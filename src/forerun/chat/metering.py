"""What one rendering may cost: time, output, and what it makes on the way (spec 06 TMP-6).

A template is a program from a stranger. Nothing interrupts it from outside: the environment calls
the meter in every loop, call and comparison, and wherever a value is made that can be larger than
its parts. Time is the processor time of the rendering thread, so a busy machine refuses nobody.

No single step may be long, since the meter cannot stop it: integers stay small, and a container
is refused where writing it out, comparing or hashing it would take many times its memory.
"""

import time
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from jinja2 import TemplateError


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """`made_bytes` bounds all texts and lists made during one rendering, together."""

    seconds: float = 2.0
    output_bytes: int = 16 * 2**20
    made_bytes: int = 2**27


class RenderLimitError(TemplateError):
    """A template took too long or grew too large."""


INTEGER_BITS = 1 << 14  # the largest that JSON brings have 4300 digits
DEPTH = 200  # containers within containers; hashing does not check its own depth
_CONTAINER_BYTES = 64
_TICK_SECONDS = 0.001
_CONTAINERS = (list, tuple, dict, KeysView, ValuesView, ItemsView)


class Meter:
    """Counts one rendering against its limits."""

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._deadline = time.thread_time() + limits.seconds
        self._asked = 0.0  # when the processor time was, by a clock that costs less to read
        self._made = 0
        self._written = 0
        # By identity, each with what keeps the identity its own. Templates cannot change values.
        self._measured: dict[int, tuple[object, int, int]] = {}

    def tick(self) -> None:
        now = time.perf_counter()
        if now - self._asked < _TICK_SECONDS:
            return
        self._asked = now
        if time.thread_time() > self._deadline:
            raise RenderLimitError(f"it ran longer than {self._limits.seconds:g} seconds")

    def made(self, size: int) -> None:
        """Count a value of `size` bytes, before it is made where that can be foreseen."""
        if size > self._limits.output_bytes:
            raise RenderLimitError("it made a value larger than its output may be")
        self.spent(size)

    def spent(self, size: int) -> None:
        """Count memory that is no single value."""
        self._made += size
        if self._made > self._limits.made_bytes:
            raise RenderLimitError("it made a value too many, all of them together being too large")
        self.tick()

    def written(self, text: str) -> None:
        self._written += len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        if self._written > self._limits.output_bytes:
            raise RenderLimitError(f"its output is longer than {self._limits.output_bytes} bytes")
        self.tick()

    def kept(self, value: object) -> None:
        """Count what a step of the template gave back."""
        if isinstance(value, int):
            check_integer(value)
        elif isinstance(value, list | tuple | dict):
            self.spent(_CONTAINER_BYTES + size_of(value))
            if self.expanded(value) > self._limits.output_bytes:
                raise RenderLimitError("it made a value too large to be written out")
        else:
            self.made(size_of(value))

    def appended(self, left: object, right: object, result: object) -> None:
        """Count a list that is two lists, without going through it: some grow one by one."""
        (size, depth), (more, deeper) = self._measure(left), self._measure(right)
        self._measured[id(result)] = (result, size + more - 8, max(depth, deeper))
        self.kept(result)

    def spelled(self, value: object) -> None:
        """Count a container about to be written out: shared parts are written once each time."""
        self.made(self.expanded(value))

    def expanded(self, value: object) -> int:
        """Bytes of a value where whatever it shares is counted each time."""
        return self._measure(value)[0]

    def _measure(self, value: object) -> tuple[int, int]:
        """Bytes and depth."""
        if not isinstance(value, _CONTAINERS):
            return 8 + size_of(value), 0
        known = self._measured.get(id(value))
        if known is None:
            parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
            size, deepest = 8, 0
            for part in parts:
                inner, depth = self._measure(part)
                size, deepest = size + inner, max(deepest, depth)
            if deepest >= DEPTH:
                raise RenderLimitError(f"it made a value nested deeper than {DEPTH}")
            known = self._measured[id(value)] = (value, size, deepest + 1)
        return known[1], known[2]


_METER: ContextVar[Meter] = ContextVar("meter")


@contextmanager
def metering(limits: RenderLimits) -> Iterator[Meter]:
    """Count what happens in the body; it must stay on one thread."""
    meter = Meter(limits)
    token = _METER.set(meter)
    try:
        yield meter
    finally:
        _METER.reset(token)


def current() -> Meter:
    return _METER.get()


def size_of(value: object) -> int:
    """Bytes that a value takes by itself, roughly: a text's characters, a list's references."""
    if isinstance(value, str):
        return len(value)
    return 8 * len(value) if isinstance(value, list | tuple | dict) else 0


def check_integer(value: int) -> None:
    """Beyond the limit, one operation takes too long, and nothing could stop it."""
    if value.bit_length() > INTEGER_BITS:
        raise RenderLimitError(f"it made a value of more than {INTEGER_BITS} bits")
