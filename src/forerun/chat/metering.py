"""What one rendering may cost: time, output, and what it makes on the way (spec 06 TMP-6).

A template is a program from a stranger. Nothing interrupts it from outside: the environment calls
the meter in every loop and call, and wherever a value is made that can be larger than its parts.
Time is the processor time of the rendering thread, so a busy machine refuses nobody.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from jinja2 import TemplateError


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """`made_bytes` bounds all texts and lists made during one rendering, together."""

    seconds: float = 2.0
    output_bytes: int = 16 * 2**20
    made_bytes: int = 2**29


class RenderLimitError(TemplateError):
    """A template took too long or grew too large."""


class Meter:
    """Counts one rendering against its limits."""

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._deadline = time.thread_time() + limits.seconds
        self._made = 0
        self._written = 0

    def tick(self) -> None:
        if time.thread_time() > self._deadline:
            raise RenderLimitError(f"it ran longer than {self._limits.seconds:g} seconds")

    def made(self, size: int) -> None:
        """Count a value of `size` bytes, before it is made where that can be foreseen."""
        self._made += size
        if size > self._limits.output_bytes or self._made > self._limits.made_bytes:
            raise RenderLimitError(f"it made a value of {size} bytes, or too many large ones")
        self.tick()

    def written(self, text: str) -> None:
        self._written += len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
        if self._written > self._limits.output_bytes:
            raise RenderLimitError(f"its output is longer than {self._limits.output_bytes} bytes")
        self.tick()

    def spelled(self, value: object) -> None:
        """Count a container about to be written out: shared parts are written once each time."""
        size, left = 0, [value]
        while left:
            part = left.pop()
            if isinstance(part, dict):
                left += [*part.keys(), *part.values()]
            elif isinstance(part, list | tuple):
                left += part
            size += 8 + size_of(part)
            if size > self._limits.output_bytes:
                break
        self.made(size)


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
    if isinstance(value, str | bytes):
        return len(value)
    return 8 * len(value) if isinstance(value, list | tuple) else 0


INTEGER_BITS = 1 << 16  # beyond that one operation on integers takes too long


def check_operation(operator: str, left: object, right: object) -> None:
    """Count the result of a binary operator before it is computed."""
    if operator == "*":
        _check_product(left, right)
    elif operator == "+":
        current().made(size_of(left) + size_of(right))
    elif operator == "%" and isinstance(left, str):
        current().made(_format_size(left, [right]))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        current().made(0 if left.bit_length() * abs(right) < INTEGER_BITS else 1 << 60)


def _check_product(left: object, right: object) -> None:
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, str | bytes | list | tuple) and isinstance(times, int):
            current().made(size_of(sequence) * max(times, 0))
    if isinstance(left, int) and isinstance(right, int):
        current().made((left.bit_length() + right.bit_length()) // 8)


def check_call(name: str, subject: object, arguments: Sequence[object]) -> None:
    """Count the result of a filter or text method that can multiply its subject."""
    rule = _GROWTH.get(name)
    if rule is not None:
        current().made(rule(subject, arguments))


def _format_size(subject: object, arguments: Sequence[object]) -> int:
    """Widths and precisions are digits in the format; a `*` would take them from elsewhere."""
    text = subject if isinstance(subject, str) else ""
    if "%*" in text or ".*" in text:
        return 1 << 60
    widths = sum(int(digits[:20]) for digits in re.findall(r"\d+", text))
    return len(text) + widths + sum(map(size_of, arguments))


def _padded_size(subject: object, arguments: Sequence[object]) -> int:
    return size_of(subject) + _largest(arguments)


def _repeated_size(separator: str) -> Callable[[object, Sequence[object]], int]:
    def size(subject: object, arguments: Sequence[object]) -> int:
        places = subject.count(separator) + 1 if isinstance(subject, str) else 1
        inserted = _largest(arguments) + sum(map(size_of, arguments))
        return size_of(subject) + places * inserted

    return size


def _replaced_size(subject: object, arguments: Sequence[object]) -> int:
    texts = [argument for argument in arguments if isinstance(argument, str)]
    if not isinstance(subject, str) or len(texts) < 2:
        return 0
    return len(subject) + subject.count(texts[0]) * len(texts[1])


def _joined_size(subject: object, arguments: Sequence[object]) -> int:
    """`separator.join(items)`, or the filter's `items | join(separator)`."""
    parts = [part for part in (subject, *arguments) if isinstance(part, list | tuple)]
    separators = [part for part in (subject, *arguments) if isinstance(part, str)]
    items = sum(len(part) for part in parts)
    return sum(map(size_of, (i for part in parts for i in part))) + items * sum(
        map(len, separators)
    )


def _wrapped_size(subject: object, arguments: Sequence[object]) -> int:
    length = len(subject) if isinstance(subject, Sized) else 1
    return length * (1 + sum(map(size_of, arguments)))


def _largest(arguments: Sequence[object]) -> int:
    return max((a for a in arguments if isinstance(a, int)), default=0)


_GROWTH: dict[str, Callable[[object, Sequence[object]], int]] = {
    "batch": _padded_size,
    "center": _padded_size,
    "expandtabs": _repeated_size("\t"),
    "format": _format_size,
    "format_map": _format_size,
    "indent": _repeated_size("\n"),
    "join": _joined_size,
    "ljust": _padded_size,
    "replace": _replaced_size,
    "rjust": _padded_size,
    "slice": _padded_size,
    "wordwrap": _wrapped_size,
    "zfill": _padded_size,
}
