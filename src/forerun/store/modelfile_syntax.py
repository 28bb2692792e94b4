"""The letters of a Modelfile: statements with line numbers, and quoting (spec 07 MF-1)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from forerun.base.errors import RequestError
from forerun.base.shown import shown

COMMANDS: Final = (
    *("FROM", "DRAFT", "PARAMETER", "TEMPLATE", "SYSTEM", "LICENSE"),
    *("ADAPTER", "MESSAGE", "RENDERER", "PARSER", "REQUIRES"),
)
# A name stands before the value of these: PARAMETER name value, MESSAGE role text.
_WITH_NAME: Final = ("PARAMETER", "MESSAGE")
_QUOTES: Final = '"""'

_Lines = Iterator[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Statement:
    """One command of a Modelfile; `name` is "" but for PARAMETER and MESSAGE."""

    line: int
    command: str
    name: str
    value: str

    def error(self, reason: object) -> RequestError:
        """What is wrong with this statement."""
        return error_at(self.line, reason)


def error_at(line: int, reason: object) -> RequestError:
    """An error of a Modelfile that says in which line it is."""
    return RequestError(f"Modelfile line {line}: {reason}")


def statements(text: str) -> list[Statement]:
    """The statements of a Modelfile, in order. RequestError with the number of a bad line."""
    lines = enumerate(text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n"), 1)
    found = []
    for number, line in lines:
        content = line.lstrip()
        if content and not content.startswith("#"):
            found.append(_statement(number, content, lines))
    return found


def quoted(text: str) -> str | None:
    """`text` as a value that is read back unchanged; None if no Modelfile can hold it."""
    *inner, _ = text.split("\n")
    if "\r\n" in text or any(line.rstrip().endswith(_QUOTES) for line in inner):
        return None
    return f"{_QUOTES}{text}{_QUOTES}"


def _statement(number: int, content: str, lines: _Lines) -> Statement:
    keyword, rest = _split(content)
    command = keyword.upper()
    if command not in COMMANDS:
        raise error_at(
            number, f"unknown command {shown(keyword)}; the commands are {', '.join(COMMANDS)}"
        )
    name = ""
    if command in _WITH_NAME:
        name, rest = _split(rest)
    if not rest.strip():
        raise error_at(number, f"{command} {name}".rstrip() + " has no value")
    return Statement(number, command, name, _value(number, rest, lines))


def _split(content: str) -> tuple[str, str]:
    """The first word, and what follows the space after it."""
    words = content.split(maxsplit=1)
    return (words[0] if words else ""), (words[1] if len(words) > 1 else "")


def _value(number: int, rest: str, lines: _Lines) -> str:
    if rest.startswith(_QUOTES):
        return _block(number, rest.removeprefix(_QUOTES), lines)
    text = rest.rstrip()
    if not text.startswith('"'):
        return text
    if len(text) < 2 or not text.endswith('"'):
        raise error_at(number, 'a value that starts with " ends with " on the same line')
    return text[1:-1]


def _block(number: int, first: str, lines: _Lines) -> str:
    """What stands between triple quotes; the closing ones end a line."""
    content = [first]
    while not content[-1].rstrip().endswith(_QUOTES):
        following = next(lines, None)
        if following is None:
            raise error_at(number, 'the """ that opens here is not closed at the end of a line')
        content.append(following[1])
    content[-1] = content[-1].rstrip().removesuffix(_QUOTES)
    return "\n".join(content)
