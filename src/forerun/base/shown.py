"""Values in messages."""

MAX_LENGTH = 80


def shown(value: object) -> str:
    """`value` as it stands in a message: quoted, on one line and not too long."""
    text = repr(value)
    return text if len(text) <= MAX_LENGTH else text[: MAX_LENGTH - 3] + "..."
