"""Values in messages."""

from collections.abc import Sequence

MAX_LENGTH = 80
MAX_LISTED = 10


def shown(value: object) -> str:
    """`value` as it stands in a message: quoted, on one line and not too long."""
    try:
        text = repr(value)
    except RecursionError:  # what was just decoded may nest as deep as the stack allows
        return f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 3] + "..."


def listed(values: Sequence[object]) -> str:
    """The first of `values` as they stand in a message, and how many more there are."""
    text = ", ".join(map(shown, values[:MAX_LISTED]))
    more = len(values) - MAX_LISTED
    return f"{text} and {more} more" if more > 0 else text
