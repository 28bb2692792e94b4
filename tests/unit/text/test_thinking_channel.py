"""Thinking apart from text: 08 PAR-1, PAR-2, PAR-3."""

import pytest

from forerun.base.spans import Span
from forerun.chat.dialects.thinking import opening_after, opening_within
from unit.text.reading import channels, read


@pytest.mark.parametrize(
    ("raw", "thinking", "text"),
    [
        ("<think>\nwhy\n</think>\n\nso", "why", "so"),
        ("\n\n<think>why</think>so", "why", "so"),
        ("<think>\n\n</think>\n\nso", "", "so"),
        ("<think>\n a\n\nb \n\n</think>\n so\n", " a\n\nb ", " so\n"),
        ("so", "", "so"),
        ("\n so", "", "\n so"),
        ("<thin", "", "<thin"),
        ("<thinking>so", "", "<thinking>so"),
        ("so <think>why</think>", "", "so <think>why</think>"),
        ("so</think>", "", "so</think>"),
        ("<think>a <think> b</think>c", "a <think> b", "c"),
        ("<think>a</think>\n<think>b</think>\nc", "ab", "c"),
    ],
)
def test_thinking_is_what_stands_between_tags_at_the_start(raw, thinking, text):
    """PAR-1, PAR-3: newlines beside tags are neither; a tag elsewhere is text."""
    assert read("think", raw) == (thinking, text, [])


@pytest.mark.parametrize(
    ("opening", "raw", "thinking", "text"),
    [
        ("opened", "\nwhy\n</think>\n\nso", "why", "so"),
        ("opened", "", "", ""),
        ("inside", "\nwhy</think>so", "\nwhy", "so"),
        ("closed", "\n\nso", "", "so"),
        ("closed", "\n<think>\nwhy</think>so", "why", "so"),
        ("closed", "\n<thi", "", "<thi"),
        ("closed", "\n\n", "", ""),
        ("text", "\nso<think>", "", "\nso<think>"),
        ("text", "<think>a</think>", "", "<think>a</think>"),
    ],
)
def test_an_answer_goes_on_where_its_prompt_ends(opening, raw, thinking, text):
    """PAR-2: after an empty block of the prompt nothing of thinking is in the content."""
    assert read("think", raw, opening=opening) == (thinking, text, [])


@pytest.mark.parametrize("end", ["", "\n", "</thin", "\n\n</"])
def test_an_answer_that_ends_inside_is_all_thinking(end):
    """PAR-3: EOS inside thinking ends with empty content; half a tag is not lost."""
    assert read("think", f"<think>why{end}") == (f"why{end}", "", [])


def test_partial_tags_are_held_back_until_they_are_decided():
    """PAR-1: what is certain is given at once, what may become a tag is not."""
    parser = channels("think", "opened")

    def said(text):
        return [(piece.thinking, piece.text) for piece in parser.push(text)]

    assert said("\n") == [("", "")]
    assert said("why </th") == [("why ", "")]
    assert said("en\n\n") == [("</then", "")]
    assert said("</think") == []
    assert said(">\n") == [("", "")]
    assert said("\nso") == [("", ""), ("", "so")]
    assert said(" it </think") == [("", " it </think")]


def test_a_model_without_thinking_has_its_tags_as_text():
    """PAR-3."""
    assert read("hermes", "<think>a</think>b") == ("", "<think>a</think>b", [])


@pytest.mark.parametrize(
    ("prompt", "opening"),
    [
        ([Span("user\nhi\nassistant\n", trusted=True)], "start"),
        ([Span("assistant\n<think>\n", trusted=True)], "opened"),
        ([Span("assistant\n<think>\n\n</think>\n\n", trusted=True)], "closed"),
        ([Span("user\n", trusted=True), Span("<think>", trusted=False)], "start"),
        ([Span("<think>", trusted=False), Span("\nassistant\n", trusted=True)], "start"),
        ([], "start"),
    ],
)
def test_the_trusted_end_of_the_prompt_tells_how_an_answer_begins(prompt, opening):
    """PAR-2; a tag that a user typed does not."""
    assert opening_after(prompt) == opening


@pytest.mark.parametrize(
    ("written", "opening"),
    [
        ("so far", "text"),
        ("<think>\nwhy", "inside"),
        ("<think>\n", "opened"),
        ("<think>why</think>\n\n", "closed"),
        ("<think>why</think>so", "text"),
    ],
)
def test_a_continued_message_tells_by_what_of_it_is_written(written, opening):
    assert opening_within(written) == opening
