"""One log format for every process: a line of key=value pairs, or of JSON."""

import json
import logging
import re
import sys
import time

ROOT = "forerun"

_INFORMATION = re.compile(
    r"\d\d:\d\d:\d\d (info|debug) "  # of the text form
    r'|\{"time": [\d.]+, "level": "(info|debug)"'
)

Field = str | int | float | bool


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%H:%M:%S", time.localtime(record.created))
        message = _on_one_line(record.getMessage())
        line = f"{stamp} {record.levelname.lower():7} {record.name}: {message}"
        for name, value in _fields(record).items():
            line += f" {name}={_shown(value)}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def configure(level: str, form: str = "text") -> None:
    """Send this process's logs to standard error. Called once, by a composition root."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    root = logging.getLogger(ROOT)
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def adopt(name: str, level: str) -> None:
    """Send another library's logs where ours go, in our format. After `configure`."""
    theirs = logging.getLogger(name)
    theirs.handlers[:] = logging.getLogger(ROOT).handlers
    theirs.setLevel(level.upper())
    theirs.propagate = False


def logger(name: str) -> logging.Logger:
    """The logger of a module; pass `__name__`."""
    return logging.getLogger(name)


def event(log: logging.Logger, message: str, **fields: Field) -> None:
    """One info line with named values: pairs in a text log, members of the object in a JSON one."""
    log.info(message, extra={"fields": fields})


def is_information(line: str) -> bool:
    """Whether a line of either form reports what went well, and so explains no end."""
    return _INFORMATION.match(line) is not None


def _fields(record: logging.LogRecord) -> dict[str, Field]:
    fields: dict[str, Field] = record.__dict__.get("fields", {})
    return fields


def _on_one_line(text: str) -> str:
    """Control characters escaped: names out of files and requests stand in messages."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _shown(value: Field) -> str:
    """A value as a word: one with spaces, quotes or control characters in it is quoted."""
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    plain = text.isprintable() and not set(text) & set(" \"='")
    return text if plain and text else json.dumps(text, ensure_ascii=False)
