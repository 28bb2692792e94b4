"""An answer as it is shown, piece by piece: thinking, text and calls of tools."""

import contextlib
import json
import sys
from collections.abc import Generator

import pytest

from forerun.base.errors import ForerunError, RequestError, RunnerError
from forerun.cli.chat import Chat, Screen, answer, described
from forerun.cli.run import parse_think
from forerun.protocol.events import Chunk, Done, Figures, Progress
from forerun.protocol.requests import CompletionRequest, ToolCall

FIGURES = Figures(
    prompt_tokens=1, cached_tokens=0, generated_tokens=1, prompt_seconds=1, generation_seconds=1
)
CALL = ToolCall(name="f", arguments={"a": "ü"}, id="call_1")


def shown(capsys, *chunks: Chunk, hide: bool = False) -> tuple[str, str]:
    screen = Screen(hide_thinking=hide)
    for chunk in chunks:
        screen.show(chunk)
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_the_answer_stands_apart_from_the_thinking(capsys) -> None:
    chunks = [Chunk(thinking="why"), Chunk(thinking=" not", text="be"), Chunk(text="cause")]
    assert shown(capsys, *chunks) == ("because", "why not\n\n")
    assert shown(capsys, *chunks, hide=True) == ("because", "")


def test_white_space_does_not_end_the_thinking(capsys) -> None:
    _, errors = shown(capsys, Chunk(thinking="a"), Chunk(text="\n"), Chunk(thinking="b"))
    assert errors == "ab"


def test_a_call_is_a_line_of_json_of_its_own(capsys) -> None:
    out, _ = shown(capsys, Chunk(text="so:"), Chunk(tool_calls=[CALL, CALL]))
    first, *calls = out.splitlines()
    assert first == "so:"
    assert [json.loads(line)["arguments"] for line in calls] == [{"a": "ü"}] * 2


class Reading:
    """A model that reads a prompt of `total` tokens and says hello."""

    gone = False

    def __init__(self, total: int) -> None:
        self._total = total

    def complete(
        self, _request: CompletionRequest
    ) -> Generator[Progress | Chunk | Done, None, None]:
        yield Progress(processed=self._total // 4, total=self._total)
        yield Chunk(text="hello")
        yield Done(reason="stop", figures=FIGURES)


class Saying:
    """A model that says these pieces, and then is cut off or fails."""

    gone = False

    def __init__(self, *chunks: Chunk, fails: BaseException | None = None) -> None:
        self._chunks = chunks
        self._fails = fails

    def complete(
        self, _request: CompletionRequest
    ) -> Generator[Progress | Chunk | Done, None, None]:
        yield from self._chunks
        if self._fails is not None:
            raise self._fails
        yield Done(reason="length", figures=FIGURES)


@pytest.mark.parametrize("fails", [None, RunnerError("gone"), KeyboardInterrupt()])
@pytest.mark.parametrize(
    ("chunks", "left"),
    [
        ([Chunk(thinking="why"), Chunk(thinking=" not")], "why not\n"),
        ([Chunk(thinking="why\n")], "why\n"),
        ([Chunk(thinking="why"), Chunk(text="\n")], "why\n"),
        ([Chunk(thinking="why"), Chunk(text="so.\n")], "why\n\n"),
        ([Chunk(text="so.\n")], ""),
        ([], ""),
    ],
)
def test_thinking_that_was_cut_off_leaves_standard_error_at_a_new_line(
    capsys, chunks: list[Chunk], left: str, fails: BaseException | None
) -> None:
    """However the answer ends; the figures of --verbose or an error come next there."""
    asked = CompletionRequest(prompt="x")
    with contextlib.suppress(ForerunError):
        answer(Saying(*chunks, fails=fails), asked, Screen(hide_thinking=False))
    assert capsys.readouterr().err == left
    with contextlib.suppress(ForerunError):
        answer(Saying(*chunks, fails=fails), asked, Screen(hide_thinking=True))
    assert capsys.readouterr().err == ""


def test_an_error_does_not_stand_behind_half_a_line(capsys) -> None:
    """In a terminal both streams are one; a complete answer gets its newline from the command."""
    for fails, out in ((None, "half"), (RunnerError("gone"), "half\n")):
        with contextlib.suppress(ForerunError):
            model = Saying(Chunk(text="half"), fails=fails)
            answer(model, CompletionRequest(prompt="x"), Screen(hide_thinking=False))
        assert capsys.readouterr().out == out


@pytest.mark.parametrize(("total", "terminal"), [(2000, True), (2000, False), (100, True)])
def test_how_much_of_a_long_prompt_is_read_is_shown(
    capsys, monkeypatch, total: int, terminal: bool
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    done = answer(Reading(total), CompletionRequest(prompt="x"), Screen(hide_thinking=False))
    out, errors = capsys.readouterr()
    assert done is not None
    assert out == "hello"
    assert ("reading the prompt" in errors) == (total > 512 and terminal)


def test_what_was_shown_is_the_next_turn(capsys) -> None:
    screen = Screen(hide_thinking=True)
    screen.show(Chunk(thinking="why", text="because", tool_calls=[CALL]))
    capsys.readouterr()
    chat = Chat(system="be brief", think="high")
    chat.answered("so?", screen.message())
    request = chat.request("and?")
    assert request.think == "high"
    assert request.messages is not None
    assert [message.role for message in request.messages] == ["system", "user", "assistant", "user"]
    answer = request.messages[2]
    assert (answer.content, answer.thinking, answer.tool_calls) == ("because", "why", [CALL])


@pytest.mark.parametrize(
    ("cached", "speed"), [(0, "100.0 tokens/s"), (8, "20.0 tokens/s"), (9, "-")]
)
def test_a_prompt_that_was_cached_has_no_speed(cached: int, speed: str) -> None:
    """Its last token is decoding's to evaluate."""
    figures = Figures(
        prompt_tokens=10,
        cached_tokens=cached,
        generated_tokens=1,
        prompt_seconds=0.1,
        generation_seconds=1,
    )
    assert f"prompt speed: {speed}\n" in described(figures)


@pytest.mark.parametrize(
    ("text", "value"), [(None, None), ("true", True), ("false", False), ("high", "high")]
)
def test_levels_of_thinking(text: str | None, value: bool | str | None) -> None:
    assert parse_think(text) is value


@pytest.mark.parametrize("text", ["", "yes", "True", "hard"])
def test_other_levels_are_named(text: str) -> None:
    """API-9: before anything is loaded."""
    with pytest.raises(RequestError, match=f"think is '{text}'; it must be"):
        parse_think(text)
