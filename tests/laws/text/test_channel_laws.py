"""Laws of the channels of an answer, over raw texts made of tags, halves of tags and values.

08 PAR-1: whatever pieces a text comes in, it says the same, and every character is decided.
"""

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from forerun.chat.dialects.registry import DIALECTS
from unit.text.reading import BLOCKS, channels, read

WORDS = {
    "think": ["<think>", "</think>"],
    "hermes": ["<tool_call>", "</tool_call>", '{"name": "find", "arguments": {"a": ', "}}", '"'],
    "qwen3-coder": ["<function=find>", "<parameter=days>", "</parameter>", "</function>", "7"],
    "llama3": ["<|python_tag|>", '{"name": "find", "parameters": {', '"a": 1', "}}", ";", "{", "}"],
    "gemma3": ["```tool_code", "```tool_call", "```", "find(", "days=1", ")", "'"],
    "functiongemma": [
        "<escape>",
        "<start_function_call>",
        "<end_function_call>",
        "call:find{",
        "a:1",
        "}",
    ],
}
WORDS["qwen3-coder"] += WORDS["hermes"][:2]
WORDS["llama3"] += ['"b": "', '\\"', "\\", '"']
for spoken, block in BLOCKS.items():
    WORDS[spoken] += [block] * 3
WORDS["qwen3"] = WORDS["think"] + WORDS["hermes"]
WORDS["qwen3.5"] = WORDS["think"] + WORDS["qwen3-coder"]
OPENINGS = st.sampled_from(["start", "closed", "opened", "inside", "text"])


@st.composite
def answers(draw):
    """A dialect, a raw answer of its tags whole and in half, and places to cut it."""
    dialect = draw(st.sampled_from(sorted(DIALECTS)))
    halves = [word[:cut] for word in WORDS[dialect] for cut in (2, len(word) - 1)]
    word = st.sampled_from([*WORDS[dialect] * 2, *halves, "\n", "\n\n", "a", " ", "é"])
    raw = "".join(draw(st.lists(word, max_size=14)))
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    edges = [0, *cuts, len(raw)]
    return dialect, [raw[start:end] for start, end in pairwise(edges)]


@settings(max_examples=400)
@given(answer=answers(), opening=OPENINGS)
@example(answer=("hermes", ["<tool_call>", "<tool_call>"]), opening="start")
def test_however_an_answer_is_split_it_says_the_same(answer, opening):
    dialect, pieces = answer
    whole = "".join(pieces)
    at_once = read(dialect, whole, opening=opening)
    assert read(dialect, *pieces, opening=opening) == at_once
    assert read(dialect, *whole, opening=opening) == at_once


@given(
    text=st.text(alphabet="ab \n<{(`;:é", max_size=20), dialect=st.sampled_from(sorted(DIALECTS))
)
def test_a_text_without_tags_comes_out_as_it_is(text, dialect):
    assert read(dialect, *text, opening="text") == ("", text, [])


@given(answer=answers())
def test_only_tags_calls_and_newlines_are_not_given_out(answer):
    """What is not a call comes out once, in order: the rest of the raw text holds it."""
    dialect, pieces = answer
    parser = channels(dialect)
    made = [piece for text in pieces for piece in parser.push(text)] + parser.finish()
    raw, place = "".join(pieces), 0
    for piece in made:
        source = raw[place : place + piece.raw]
        said = piece.thinking + piece.text
        if said:
            assert said == source
        elif not piece.calls:
            assert source.strip("\n") in ("", "<think>", "</think>")
        place += piece.raw


@given(answer=answers())
def test_text_is_held_back_only_where_a_tag_or_a_call_may_have_begun(answer):
    dialect, pieces = answer
    parser = channels(dialect, "text")
    raw = decided = 0
    for text in pieces:
        decided += sum(piece.raw for piece in parser.push(text))
        raw += len(text)
        held = "".join(pieces)[decided:raw].strip()
        assert any(word.startswith(held[:2]) for word in [*WORDS[dialect], "{"])
