"""How large a result can be, from its arguments alone, for whatever can multiply them (TMP-6).

Each rule counts before the result is made. What has no rule makes nothing much larger than what it
is given, and is counted afterwards.
"""

import re
from collections.abc import Callable, Mapping, Sequence, Sized

from forerun.chat.metering import INTEGER_BITS, RenderLimitError, current, size_of

PIECE_BYTES = 64  # a short text of its own, and the reference to it
LONGEST_INDENT = 64
LARGEST_EXPONENT = 308  # of a float
_STAR = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(?:\*|\d*\.\*)")


def check_operation(operator: str, left: object, right: object) -> None:
    """Count the result of a binary operator before it is computed."""
    if isinstance(left, int) and isinstance(right, int):
        if operator == "**" and left.bit_length() * abs(right) > INTEGER_BITS:
            raise RenderLimitError(f"it made a value of more than {INTEGER_BITS} bits")
    elif operator == "*":
        for sequence, times in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(times, int):
                current().made(_parts_size(sequence) * max(times, 0))
    elif operator == "+" and isinstance(left, str):
        current().made(size_of(left) + size_of(right))
    elif operator == "%" and isinstance(left, str):
        current().made(_format_size(left, [right]))


def _parts_size(sequence: str | Sequence[object]) -> int:
    if isinstance(sequence, str):
        return len(sequence)
    return sum(map(current().expanded, sequence))


def check_call(name: str, subject: object, arguments: Sequence[object]) -> None:
    """Count the result of a filter or text method that can multiply its subject."""
    if isinstance(subject, str) and name in _IN_PIECES:
        current().spent(PIECE_BYTES * _pieces(name, subject, arguments))
    rule = _GROWTH.get(name)
    if rule is not None:
        current().made(rule(subject, arguments))


def check_field(value: object, form: str) -> None:
    """Count one field of `str.format`, its format already without fields of its own."""
    current().made(_digits(form) + current().expanded(value))


def check_json(value: object, indent: object, separators: object) -> None:
    """Count what JSON puts between the parts of `value`."""
    between = [indent] if isinstance(indent, str) else []
    between += separators if isinstance(separators, list | tuple) else []
    widest = max(_largest([indent]), *(size_of(text) for text in between), 0)
    if widest > LONGEST_INDENT:
        raise RenderLimitError(
            f"it made a value of JSON with more than {LONGEST_INDENT} characters between parts"
        )
    size = current().expanded(value)
    current().made(size + size // 8 * sum(map(size_of, between)))


def _digits(form: str) -> int:
    """Widths and precisions are digits in the format."""
    return sum(int(digits[:20]) for digits in re.findall(r"\d+", form))


def _format_size(subject: object, arguments: Sequence[object]) -> int:
    """`subject % arguments`. A star takes a width from the arguments, a name uses one again."""
    form = subject if isinstance(subject, str) else ""
    if _STAR.search(form):
        raise RenderLimitError("it made a value as wide as a star in its format takes it")
    given = sum(map(current().expanded, arguments))
    uses = form.count("%") if "%(" in form else 1
    return len(form) + _digits(form) + given * uses


def _padded_size(subject: object, arguments: Sequence[object]) -> int:
    return size_of(subject) + _largest(arguments)


def _repeated_size(separator: str) -> Callable[[object, Sequence[object]], int]:
    def size(subject: object, arguments: Sequence[object]) -> int:
        places = subject.count(separator) + 1 if isinstance(subject, str) else 1
        inserted = max(_largest(arguments), 8) + sum(map(size_of, arguments))
        return size_of(subject) + places * inserted

    return size


def _replaced_size(subject: object, arguments: Sequence[object]) -> int:
    """The filter takes its arguments by name too, in any order."""
    texts = [str(argument) for argument in arguments if isinstance(argument, str | int)]
    size = current().expanded(subject)
    if not isinstance(subject, str) or len(texts) < 2:
        return size
    old, new, *_ = texts
    return size + max(subject.count(old) * len(new), subject.count(new) * len(old))


def _joined_size(subject: object, arguments: Sequence[object]) -> int:
    """`items | join(separator)`."""
    items = len(subject) if isinstance(subject, Sized) else 1
    return current().expanded(subject) + items * sum(map(size_of, arguments))


def _joined_by_method_size(subject: object, arguments: Sequence[object]) -> int:
    """`separator.join(items)`."""
    items = sum(len(argument) for argument in arguments if isinstance(argument, Sized))
    return sum(map(current().expanded, arguments)) + items * size_of(subject)


def _wrapped_size(subject: object, arguments: Sequence[object]) -> int:
    length = len(subject) if isinstance(subject, Sized) else 1
    return length * (1 + sum(map(size_of, arguments)))


def _columns_size(subject: object, arguments: Sequence[object]) -> int:
    return size_of(subject) + 8 * _largest(arguments)


def _sum_size(subject: object, arguments: Sequence[object]) -> int:
    """Sums of lists copy what they have so far at each step."""
    if not any(isinstance(argument, list | tuple) for argument in arguments):
        return 0
    return current().expanded(subject) * (len(subject) if isinstance(subject, Sized) else 1)


def _round_size(subject: object, arguments: Sequence[object]) -> int:
    """Some of its methods compute ten to the power of the precision."""
    del subject
    if any(isinstance(a, int) and abs(a) > LARGEST_EXPONENT for a in arguments):
        raise RenderLimitError(f"it made a value to more than {LARGEST_EXPONENT} digits")
    return 0


def _time_size(subject: object, arguments: Sequence[object]) -> int:
    """A format's widths count up to this."""
    del subject
    return 1024 * sum(map(size_of, arguments))


def _spelled_size(subject: object, arguments: Sequence[object]) -> int:
    del arguments
    return current().expanded(subject) if isinstance(subject, list | tuple | dict) else 0


def _largest(arguments: Sequence[object]) -> int:
    return max((a for a in arguments if isinstance(a, int)), default=0)


def _pieces(name: str, subject: str, arguments: Sequence[object]) -> int:
    """Into how many texts a method or filter takes `subject` apart, at most."""
    if name in ("split", "rsplit"):
        separators = [a for a in arguments if isinstance(a, str)]
        if separators and separators[0]:
            return subject.count(separators[0]) + 1
        return sum(map(subject.count, " \n\t\r")) + 1
    if name in ("splitlines", "indent", "wordcount"):
        return sum(map(subject.count, " \n\t\r")) + 1
    return len(subject)


_IN_PIECES = frozenset(
    (
        *("batch", "groupby", "indent", "list", "max", "min", "reverse", "rsplit", "slice", "sort"),
        *("split", "splitlines", "title", "unique", "urlencode", "wordcount", "wordwrap"),
    )
)

_GROWTH: Mapping[str, Callable[[object, Sequence[object]], int]] = {
    **dict.fromkeys(
        (
            *("capitalize", "e", "escape", "float", "forceescape", "int", "lower", "safe"),
            *("string", "title", "trim", "truncate", "upper", "urlencode", "wordcount"),
        ),
        _spelled_size,
    ),
    "batch": _columns_size,
    "center": _padded_size,
    "expandtabs": _repeated_size("\t"),
    "format": _format_size,
    "indent": _repeated_size("\n"),
    "join": _joined_size,
    "join by method": _joined_by_method_size,
    "ljust": _padded_size,
    "replace": _replaced_size,
    "rjust": _padded_size,
    "round": _round_size,
    "slice": _columns_size,
    "strftime_now": _time_size,
    "sum": _sum_size,
    "wordwrap": _wrapped_size,
    "zfill": _padded_size,
}
