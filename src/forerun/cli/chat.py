"""One conversation with a loaded model: what the one-shot answer and the prompt share."""

import sys
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field

from forerun.base.options import OptionValue
from forerun.base.units import format_seconds
from forerun.protocol.events import Chunk, Done, Figures
from forerun.protocol.requests import CompletionRequest, Message
from forerun.scheduler.connection import Connection


@dataclass(slots=True)
class Chat:
    """The turns so far, and what every answer is asked with."""

    system: str | None = None
    options: dict[str, OptionValue] = field(default_factory=dict)
    turns: list[Message] = field(default_factory=list)

    def request(self, text: str) -> CompletionRequest:
        """The request for an answer to `text` after the turns so far."""
        system = [] if self.system is None else [Message(role="system", content=self.system)]
        asked = Message(role="user", content=text)
        return CompletionRequest(messages=[*system, *self.turns, asked], options=dict(self.options))

    def answered(self, text: str, answer: str) -> None:
        """Both turns belong to the conversation from now on."""
        self.turns.append(Message(role="user", content=text))
        self.turns.append(Message(role="assistant", content=answer))


def answer(
    connection: Connection, request: CompletionRequest, write: Callable[[str], None]
) -> tuple[str, Done | None]:
    """Stream one answer through `write`; its text, and how it ended unless Ctrl-C stopped it."""
    pieces: list[str] = []
    try:
        with closing(_events(connection, request)) as events:
            for event in events:
                if isinstance(event, Done):
                    return "".join(pieces), event
                pieces.append(event.text)
                write(event.text)
    except KeyboardInterrupt:
        return "".join(pieces), None
    raise AssertionError("an answer ends with Done or with an error")


def cut_short(done: Done, request: CompletionRequest) -> str | None:
    """What to tell of an answer that the context's end cut off; None if nothing did."""
    asked = request.options.get("num_predict", -1)
    if done.reason != "length" or done.figures.generated_tokens == asked:
        return None
    total = done.figures.prompt_tokens + done.figures.generated_tokens
    return (
        f"(cut off after {total} tokens of prompt and answer: the context or num_predict is full)"
    )


def _events(
    connection: Connection, request: CompletionRequest
) -> Generator[Chunk | Done, None, None]:
    with closing(connection.complete(request)) as events:
        for event in events:
            if isinstance(event, Chunk | Done):
                yield event


def write_now(text: str) -> None:
    """Show a piece of text at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def described(figures: Figures) -> str:
    """The figures of `--verbose`, a line each."""
    evaluated = figures.prompt_tokens - figures.cached_tokens
    rows = [
        ("prompt", f"{figures.prompt_tokens} tokens, {figures.cached_tokens} of them cached"),
        ("prompt speed", _speed(evaluated, figures.prompt_seconds)),
        ("first token", format_seconds(figures.first_token_seconds)),
        ("answer", f"{figures.generated_tokens} tokens"),
        ("answer speed", _speed(figures.generated_tokens, figures.generation_seconds)),
        ("load", format_seconds(figures.load_seconds)),
    ]
    if figures.drafted_tokens:
        share = figures.accepted_tokens / figures.drafted_tokens
        rows.append(("drafted", f"{figures.drafted_tokens} tokens, {share:.0%} accepted"))
    return "\n".join(f"{name + ':':<14}{value}" for name, value in rows)


def _speed(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} tokens/s" if seconds > 0 else "-"
