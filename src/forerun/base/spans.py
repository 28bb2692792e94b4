"""Text with its origin: what crosses from chat templates to the tokenizer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of prompt text. `trusted` text may hold control tokens (spec 06 TOK-2, TMP-7)."""

    text: str
    trusted: bool
