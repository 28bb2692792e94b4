"""Sizes and durations as people write and read them."""

import math
import re

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*((?:[KMGT]I?)?B?)", re.IGNORECASE)
_BYTES = {
    **dict.fromkeys(("", "B"), 1),
    **dict.fromkeys(("KI", "KIB"), KIB),
    **dict.fromkeys(("MI", "MIB"), MIB),
    **dict.fromkeys(("GI", "GIB"), GIB),
    **dict.fromkeys(("TI", "TIB"), 1024 * GIB),
    **dict.fromkeys(("K", "KB"), 10**3),
    **dict.fromkeys(("M", "MB"), 10**6),
    **dict.fromkeys(("G", "GB"), 10**9),
    **dict.fromkeys(("T", "TB"), 10**12),
}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(text: str) -> float:
    """Seconds of "5m", "1h30m", "250ms" or a bare number. Negative keeps its sign.

    Raises ValueError naming the text.
    """
    body = text.strip()
    sign = -1.0 if body.startswith("-") else 1.0
    body = body.lstrip("+-")
    if re.fullmatch(r"\d+(?:\.\d+)?", body):
        return sign * float(body)
    parts = _DURATION_PART.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise ValueError(f"{text!r} is not a duration; write 30s, 5m or 1h30m")
    return sign * sum(float(number) * _SECONDS[unit] for number, unit in parts)


def parse_keep_alive(value: str | float) -> float:
    """Seconds that an idle model stays loaded: a duration or a number of seconds, as text or not.

    Negative ones mean for ever, which is infinity. Raises ValueError for anything else.
    """
    seconds = parse_duration(value) if isinstance(value, str) else float(value)
    if math.isnan(seconds):
        raise ValueError(f"{value} is not a duration")
    return math.inf if seconds < 0 else seconds


def parse_size(text: str) -> int:
    """Bytes of "512MiB", "1.5GiB", "2GB" or a bare number. Raises ValueError naming the text."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write 512MiB, 1GiB or a number of bytes")
    return int(float(match[1]) * _BYTES[match[2].upper()])


def format_bytes(count: float) -> str:
    """`count` bytes as "96.4 MB" (decimal units, as file managers and Ollama show them)."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def format_seconds(seconds: float) -> str:
    """`seconds` as "350 ms", "2.1 s", "3 min 20 s"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"
