"""One conversation with a loaded model: what the one-shot answer and the prompt share."""

import sys
from contextlib import closing
from dataclasses import dataclass, field

import click

from forerun.base.errors import ForerunError
from forerun.base.options import OptionValue
from forerun.base.units import format_seconds
from forerun.cli.places import OpenModel
from forerun.cli.progress import PromptBar
from forerun.protocol.codec import encode_line
from forerun.protocol.events import Chunk, Done, Drafting, Figures, Progress
from forerun.protocol.requests import CompletionRequest, Message, ToolCall


@dataclass(slots=True)
class Chat:
    """The turns so far, and what every answer is asked with."""

    system: str | None = None
    options: dict[str, OptionValue] = field(default_factory=dict)
    think: bool | str | None = None  # None: as the model does by itself
    turns: list[Message] = field(default_factory=list)

    def request(self, text: str) -> CompletionRequest:
        """The request for an answer to `text` after the turns so far."""
        system = [] if self.system is None else [Message(role="system", content=self.system)]
        asked = Message(role="user", content=text)
        return CompletionRequest(
            messages=[*system, *self.turns, asked], options=dict(self.options), think=self.think
        )

    def answered(self, text: str, answer: Message) -> None:
        """Both turns belong to the conversation from now on."""
        self.turns.append(Message(role="user", content=text))
        self.turns.append(answer)


@dataclass(slots=True)
class Shown:
    """What of an answer is shown besides its text."""

    verbose: bool = False  # counts and speeds
    hide_thinking: bool = False


class Screen:
    """Shows an answer as it comes, and remembers it.

    The text goes to standard output, and so do calls of tools, a line of JSON each. Thinking goes
    to standard error, dim in a terminal, so that a pipe gets the answer alone.
    """

    def __init__(self, *, hide_thinking: bool) -> None:
        self._hide_thinking = hide_thinking
        self._thinking: list[str] = []
        self._text: list[str] = []
        self._calls: list[ToolCall] = []
        self._apart = True  # whether the answer stands apart from the thinking
        self._at_line_start = True  # of standard output
        self._mid_thought = False  # on a line of standard error that thinking began

    def show(self, chunk: Chunk) -> None:
        """Its thinking first, then its text, then its calls."""
        self._thinking.append(chunk.thinking)
        self._text.append(chunk.text)
        self._calls += chunk.tool_calls
        if chunk.thinking and not self._hide_thinking:
            self._apart = False
            self._mid_thought = not chunk.thinking.endswith("\n")
            click.secho(chunk.thinking, dim=True, err=True, nl=False)
        if not self._apart and (chunk.text.strip() or chunk.tool_calls):
            self._apart, self._mid_thought = True, False
            click.echo("\n", err=True)
        if chunk.text:
            self._at_line_start = chunk.text.endswith("\n")
        write_now(chunk.text)
        for call in chunk.tool_calls:
            line = encode_line(call).decode()
            write_now(line if self._at_line_start else f"\n{line}")
            self._at_line_start = True

    def end(self, *, broken_off: bool) -> None:
        """Nothing more is shown: what comes next on standard error has a line of its own.

        broken_off  by an error, which a terminal would show behind half a line of text
        """
        if self._mid_thought:
            self._mid_thought = False
            click.echo(err=True)
        if broken_off and not self._at_line_start:
            self._at_line_start = True
            write_now("\n")

    def message(self) -> Message:
        """What was shown, as a turn of the conversation."""
        return Message(
            role="assistant",
            content="".join(self._text),
            thinking="".join(self._thinking) or None,
            tool_calls=self._calls or None,
        )


def answer(model: OpenModel, request: CompletionRequest, screen: Screen) -> Done | None:
    """Show one answer as it comes; how it ended, unless Ctrl-C stopped it."""
    broken_off = False
    try:
        with closing(model.complete(request)) as events, closing(PromptBar()) as bar:
            for event in events:
                if isinstance(event, Progress):
                    bar.update(event)
                    continue
                bar.close()
                if isinstance(event, Done):
                    return event
                screen.show(event)
    except KeyboardInterrupt:
        return None
    except ForerunError:
        broken_off = True
        raise
    finally:
        screen.end(broken_off=broken_off)
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


def write_now(text: str) -> None:
    """Show a piece of text at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def described(figures: Figures) -> str:
    """The figures of `--verbose`, a line each."""
    left = figures.prompt_tokens - figures.cached_tokens
    evaluated = left if left > 1 else 0  # the last token is the first that decoding evaluates
    rows = [
        ("prompt", f"{figures.prompt_tokens} tokens, {figures.cached_tokens} of them cached"),
        ("prompt speed", _speed(evaluated, figures.prompt_seconds)),
        ("first token", format_seconds(figures.first_token_seconds)),
        ("answer", f"{figures.generated_tokens} tokens"),
        ("answer speed", _speed(figures.generated_tokens, figures.generation_seconds)),
        ("load", format_seconds(figures.load_seconds)),
    ]
    if figures.drafting is not None:
        rows += _drafting_rows(figures.drafting)
    return "\n".join(f"{name + ':':<14}{value}" for name, value in rows)


def _drafting_rows(drafting: Drafting) -> list[tuple[str, str]]:
    """What the drafter did; of each position in a round the share that was accepted there."""
    rounds = f"{drafting.rounds} rounds of {drafting.drafter}"
    if not drafting.drafted:
        return [("drafted", f"nothing in {rounds}")]
    share = drafting.accepted / drafting.drafted
    found = [each for each in drafting.positions if each.observed]
    positions = " ".join(f"{each.accepted / each.observed:.0%}" for each in found)
    deepest = max((span.largest for span in drafting.depths), default=0)
    over_time = " ".join(f"{span.mean:.1f}" for span in drafting.depths)
    mean = drafting.drafted / max(drafting.rounds, 1)
    return [
        ("drafted", f"{drafting.drafted} tokens in {rounds}, {share:.0%} accepted"),
        ("by position", f"{positions} of those compared"),
        ("depth", f"{mean:.1f} on average, {deepest} at most; over time {over_time}"),
    ]


def _speed(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} tokens/s" if tokens and seconds > 0 else "-"
