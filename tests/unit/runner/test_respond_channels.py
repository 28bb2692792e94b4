"""Tokens to thinking, text and tool calls: 05 UTF-4, STP-1, STP-2; 08 PAR-1..3; D15, E01, E03.

A byte tokenizer, in which the tags of thinking are tokens of their own, as published ones have it.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.tiny import TURN_END, write_tokenizer
from forerun.chat.dialects.registry import DIALECTS
from forerun.contract.decoder import TokenLogprob
from forerun.contract.sink import Figures
from forerun.protocol.codec import encode
from forerun.protocol.events import Chunk, Done
from forerun.runner.respond import Responder
from forerun.runner.stream import EventStream
from forerun.runner.text import tag_ids
from forerun.tokenizer.tokenizer import Tokenizer
from unit.text.reading import channels

THINK, THOUGHT = 259, 260
FIGURES = Figures(
    prompt_tokens=1, cached_tokens=0, generated_tokens=1, prompt_seconds=0.1, generation_seconds=0.1
)
CALL = '<tool_call>\n{"name": "find", "arguments": {"city": "é👩"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    definition = json.loads(files["tokenizer.json"])
    for number, tag in ((THINK, "<think>"), (THOUGHT, "</think>")):
        sides = {"single_word": False, "lstrip": False, "rstrip": False}
        entry = {"id": number, "content": tag, "special": False, "normalized": False}
        definition["added_tokens"].append(entry | sides)
    files["tokenizer.json"] = json.dumps(definition).encode()
    return Tokenizer.load(files, "<think></think>")


def tokens_of(raw):
    tagged = raw.replace("<think>", "\0").replace("</think>", "\1").encode()
    return [{0: THINK, 1: THOUGHT}.get(byte, byte) for byte in tagged]


def answer(tokenizer, tokens, *, width=1, stops=(), dialect="qwen3", reason="length", parser=None):
    """The chunks of an answer as they are put, and how it ended."""
    stream = EventStream()
    responder = Responder(
        stream,
        tokenizer,
        stops,
        channels=parser or channels(dialect),
        tag_ids=tag_ids(tokenizer, DIALECTS[dialect]),
    )
    put = []
    for at in range(0, len(tokens), width):
        run = tokens[at : at + width]
        entries = [TokenLogprob(token, -0.5, ()) for token in run]
        stopped = responder.take(run, entries)
        put += stream.take()
        if stopped is not None:
            reason = "stop"
            break
    responder.finish(reason, FIGURES)
    *rest, done = stream.take()
    assert isinstance(done, Done)
    return [*put, *rest], done.reason


def said(chunks):
    return (
        "".join(chunk.thinking for chunk in chunks),
        "".join(chunk.text for chunk in chunks),
        [(call.name, call.arguments) for chunk in chunks for call in chunk.tool_calls],
    )


def test_an_answer_of_all_channels(tokenizer):
    """PAR-1; E03: whatever characters are cut by tokens."""
    raw = f"<think>\nwhy 日\n</think>\n\nso 👩\n{CALL}\n{CALL}"
    for width in (1, 2, 3, 7, 1000):
        chunks, _ = answer(tokenizer, tokens_of(raw), width=width)
        found = ("find", {"city": "é👩"})
        assert said(chunks) == ("why 日", "so 👩", [found, found])


def test_tags_that_are_control_tokens_are_read(tokenizer):
    """06 TOK-2 makes control tokens of what a template writes; other control tokens say nothing."""
    tokens = [THINK, *b"why", THOUGHT, TURN_END, *b"so"]
    chunks, _ = answer(tokenizer, tokens)
    assert said(chunks) == ("why", "so", [])
    plain, _ = answer(tokenizer, tokens, dialect="hermes")
    assert said(plain) == ("", "whyso", [])


def test_tags_show_where_nothing_is_separated(tokenizer):
    """A raw prompt is continued by all that the model writes."""
    stream = EventStream()
    shown = frozenset((THINK, THOUGHT))
    responder = Responder(stream, tokenizer, (), tag_ids=shown)
    responder.take([THINK, *b"why", THOUGHT, *b"so"], [])
    assert stream.take()[0].text == "<think>why</think>so"


RAW = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<tool_call>", "</tool_call>", CALL, "\n", "a", "é", "<", "stop"]
    ),
    max_size=8,
).map("".join)


@given(
    raw=RAW,
    width=st.integers(1, 9),
    cut=st.integers(0, 30),
    stops=st.sampled_from([(), ("stop",), ("é", "l>"), ("ps",)]),
)
def test_every_token_comes_out_once_in_order_with_its_entry(tokenizer, raw, width, cut, stops):
    """UTF-4: none is lost, none doubled, at the end, at a cut and at a stop string."""
    tokens = tokens_of(raw)
    tokens = tokens[: len(tokens) - cut] or tokens
    chunks, reason = answer(tokenizer, tokens, width=width, stops=stops)
    ids = [token for chunk in chunks for token in chunk.tokens]
    assert ids == tokens[: len(ids)]
    if reason == "length":
        assert ids == tokens
    for chunk in chunks:
        assert [entry.bytes for entry in chunk.logprobs] == [
            list(tokenizer.token_bytes(token, control=True)) for token in chunk.tokens
        ]


@given(raw=RAW, width=st.integers(1, 9), stops=st.sampled_from([(), ("stop",), ("é", "l>")]))
def test_the_entries_of_a_chunk_belong_to_what_it_carries(tokenizer, raw, width, stops):
    """UTF-4: a chunk's tokens spell what it says, with tags and newlines before and after it."""
    chunks, _ = answer(tokenizer, tokens_of(raw), width=width, stops=stops)
    for chunk in chunks:
        spelled = b"".join(tokenizer.token_bytes(t, control=True) for t in chunk.tokens).decode()
        for text in (chunk.thinking, chunk.text):
            assert not text or "".join(text.split("\n")) in "".join(spelled.split("\n"))
        for call in chunk.tool_calls:
            assert call.arguments["city"] in spelled
        if not (chunk.thinking or chunk.text or chunk.tool_calls):
            assert chunk is chunks[-1]


def test_a_tags_tokens_wait_for_what_follows_it(tokenizer):
    """UTF-4, DEC-9: a round that says nothing emits nothing."""
    chunks, _ = answer(tokenizer, [THINK, 10, *b"w", 10, THOUGHT, 10, 10, *b"s"])
    assert [(chunk.thinking, chunk.text, chunk.tokens) for chunk in chunks] == [
        ("w", "", [THINK, 10, *b"w"]),
        ("", "s", [10, THOUGHT, 10, 10, *b"s"]),
    ]


def test_channels_of_one_round_are_one_event_in_order(tokenizer):
    """DEC-8: more than one only where the order within an event would be another."""
    chunks, _ = answer(tokenizer, tokens_of(f"<think>w</think>s{CALL}"), width=1000)
    assert [(c.thinking, c.text, len(c.tool_calls)) for c in chunks] == [("w", "s", 1)]
    chunks, _ = answer(tokenizer, tokens_of(f"s{CALL}t{CALL}"), width=1000)
    assert [(chunk.text, len(chunk.tool_calls)) for chunk in chunks] == [("s", 1), ("t", 1)]
    assert bytes(chunks[0].tokens).decode() == f"s{CALL}"


@pytest.mark.parametrize("length", range(len(CALL) - 1))
def test_a_call_cut_by_the_budget_is_text(tokenizer, length):
    """Case D15: finish length, the half call as text, and no exception."""
    chunks, reason = answer(tokenizer, tokens_of(CALL)[:length])
    assert reason == "length"
    assert said(chunks)[2] == []
    assert said(chunks)[1] == tokenizer.decode(tokens_of(CALL)[:length]).rstrip("\ufffd")


@pytest.mark.parametrize(
    ("raw", "stop", "expected"),
    [
        ("<think>why not</think>so", " not", ("why", "", [])),
        ("<think>why</think>so what", " w", ("why", "so", [])),
        ("<think>why</think>so", "</think>", ("why", "", [])),
        (f"so\n{CALL}", '"arg', ("", 'so\n<tool_call>\n{"name": "find", ', [])),
        (f"{CALL} then", " t", ("", "", [("find", {"city": "é👩"})])),
        (f"{CALL}", "</tool", ("", CALL[: CALL.index("</tool")], [])),
        ("<think>\n", "\n", ("", "", [])),
    ],
)
def test_a_stop_string_ends_the_answer_wherever_it_appears(tokenizer, raw, stop, expected):
    """STP-1, STP-2, case E01: also in thinking; inside a call, the half call is text."""
    for width in (1, 4, 1000):
        chunks, reason = answer(tokenizer, tokens_of(raw), stops=[stop], width=width)
        assert reason == "stop"
        assert said(chunks) == expected


def test_an_answer_that_ends_inside_thinking_has_no_text(tokenizer):
    """PAR-3: EOS, which the engine cuts off."""
    chunks, reason = answer(tokenizer, tokens_of("<think>why"), reason="stop")
    assert (said(chunks), reason) == (("why", "", []), "stop")


@pytest.mark.parametrize(
    "body", ['{"a": "\\ud800"}', '{"a": ' + "[" * 900 + "]" * 900 + "}", '{"a": 1e999}']
)
def test_whatever_a_model_writes_can_be_sent(tokenizer, body):
    """Case D15: a call that cannot be written as JSON must not break the connection."""
    raw = f'<tool_call>{{"name": "find", "arguments": {body}}}</tool_call>'
    chunks, _ = answer(tokenizer, tokens_of(raw), width=1000)
    assert said(chunks)[1] == raw
    assert all(encode(chunk) for chunk in chunks if isinstance(chunk, Chunk))
