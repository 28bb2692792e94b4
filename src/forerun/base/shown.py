"""Values in messages."""

MAX_LENGTH = 80


def shown(value: object) -> str:
    """`value` as it stands in a message: quoted, on one line and not too long."""
    try:
        text = repr(value)
    except RecursionError:  # what was just decoded may nest as deep as the stack allows
        return f"a {type(value).__name__} that is nested too deeply"
    return text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 3] + "..."
