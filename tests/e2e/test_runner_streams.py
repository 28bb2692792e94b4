"""Text on its way out of a runner, one byte a token: 05 UTF, STP, HTP-3; reports E01 and E03."""

import json
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.scripted import SCRIPTED_RUNNER, scripted_store
from forerun.protocol.events import Chunk, Done, Progress
from forerun.protocol.requests import CompletionRequest, Message, TokenizeRequest
from forerun.scheduler.runners import RunnerProcess

APART = "TOKEN_MS=20"  # longer than writes are coalesced: most characters come alone
TEXTS = (
    "naïve 👩‍💻 日本 \ufffd",
    "👩‍👩‍👧‍👦👋🏽🇩🇪",
    "\ufffd\ufffd",
    "漢字かな交じり文",
    "e\u0301 \u200b\u2028\x00 \U0010ffff",
)
PACES = ("", APART)
few = settings(max_examples=25)


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    store = scripted_store(tmp_path_factory.mktemp("streams"))
    with RunnerProcess("scripted", store, module=SCRIPTED_RUNNER) as process:
        process.load()
        yield process.connection


def ask(script, *, pace="", logprobs=False, **options):
    message = Message(role="user", content=f"{pace} SAY:{script}")
    return CompletionRequest(messages=[message], options=options, logprobs=logprobs)


def streamed(connection, request):
    """The chunks of an answer and its end."""
    *events, done = connection.complete(request)
    assert isinstance(done, Done)
    chunks = [event for event in events if not isinstance(event, Progress)]
    assert all(isinstance(event, Chunk) for event in chunks)
    return chunks, done


def said(connection, request):
    chunks, done = streamed(connection, request)
    return "".join(chunk.text for chunk in chunks), done


@pytest.mark.parametrize("text", TEXTS)
def test_characters_come_whole(runner, text):
    """E03, UTF-1: however many bytes, and so tokens, a character has; a real U+FFFD is one."""
    chunks, done = streamed(runner, ask(text, pace=APART))
    assert len(chunks) > 1
    assert [bytes(chunk.tokens).decode() for chunk in chunks] == [chunk.text for chunk in chunks]
    assert "".join(chunk.text for chunk in chunks) == text
    assert done.reason == "stop"


@few
@given(st.text(max_size=12))
def test_any_text_comes_as_it_was_said(runner, text):
    """E03."""
    found, done = said(runner, ask(text))
    assert found == text
    assert done.figures.generated_tokens == len(text.encode())


@pytest.mark.parametrize("pace", PACES)
def test_a_character_that_is_cut_is_left_out(runner, pace):
    """E03, UTF-3: the same at any pace, and the tokens are counted all the same."""
    text = "é👩\u200d💻"
    for budget in range(1, len(text.encode())):
        found, done = said(runner, ask(text, pace=pace, num_predict=budget))
        assert found == text.encode()[:budget].decode(errors="ignore")
        assert (done.reason, done.figures.generated_tokens) == ("length", budget)


def test_bytes_that_are_no_character_are_shown_as_such(runner):
    """UTF-1: they hold up nothing that follows."""
    prompt = [*b"SAY:a", 0xFF, 0xC3, *b"b", 258]
    assert said(runner, CompletionRequest(prompt_ids=prompt))[0] == "a\ufffd\ufffdb"


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize(
    ("text", "stop", "left"),
    [
        ("The quick brown fox", "own fox", "The quick br"),
        ("hi 👩‍💻 there", "💻", "hi 👩\u200d"),
        ("日本語", "本", "日"),
        ("stop at once", "stop", ""),
        ("aaab", "aab", "a"),
        ("one\ntwo\n\nthree", "\n\n", "one\ntwo"),
    ],
)
def test_a_stop_string_over_several_tokens_never_leaks(runner, pace, text, stop, left):
    """E01, STP-1, STP-2: not its first half either, at any moment."""
    chunks, done = streamed(runner, ask(text, pace=pace, stop=["never", stop]))
    shown = ""
    for chunk in chunks:
        shown += chunk.text
        assert left.startswith(shown)
    assert shown == left
    assert done.reason == "stop"
    assert done.figures.generated_tokens == len((left + stop).encode())


def test_what_was_held_back_for_a_stop_string_comes_at_the_end(runner):
    """E01, STP-2: when the answer ends before the stop string is whole, or is cut."""
    text = "The quick brown fo"
    assert said(runner, ask(text, stop=["own fox"]))[0] == text
    found, done = said(runner, ask("The quick brown fox", stop=["own fox"], num_predict=15))
    assert (found, done.reason) == ("The quick brown", "length")


@few
@given(st.text("ab👩é", max_size=10), st.text("ab👩é", min_size=1, max_size=4))
def test_an_answer_ends_where_a_stop_string_first_stands(runner, text, stop):
    """E01, STP-1."""
    found, done = said(runner, ask(text, stop=[stop]))
    assert found == text.partition(stop)[0]
    assert done.reason == "stop"


@pytest.mark.parametrize("pace", PACES)
def test_log_probabilities_come_with_their_bytes(runner, pace):
    """UTF-4."""
    text = TEXTS[0]
    chunks, _ = streamed(runner, ask(text, pace=pace, logprobs=True))
    for chunk in chunks:
        assert b"".join(bytes(entry.bytes) for entry in chunk.logprobs).decode() == chunk.text
    assert sum(len(chunk.logprobs) for chunk in chunks) == len(text.encode())


def test_the_figures_count_every_token(runner):
    """HTP-3: those of the prompt, those of it that were held, and those that were drawn."""
    rendered = "<|im_start|>user\n SAY:dé<|im_end|>\n<|im_start|>assistant\n"
    length = len(runner.tokenize(TokenizeRequest(text=rendered)))
    said(runner, ask("dé"))
    _, done = said(runner, ask("dé"))
    figures = done.figures
    assert (figures.prompt_tokens, figures.cached_tokens) == (length, length - 1)
    assert figures.generated_tokens == 3
    assert figures.generation_seconds > 0


@pytest.mark.parametrize(
    ("content", "last"), [("SAY:abc", "done"), ("FAIL_AT=2 SAY:abc", "failed")]
)
def test_exactly_one_event_ends_an_answer(runner, content, last):
    """HTP-3, REQ-3: read to the end of the connection."""
    body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(runner._path))
        head = f"POST /v1/completions HTTP/1.0\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        with connection.makefile("rb") as answer:
            _, _, lines = answer.read().partition(b"\r\n\r\n")
    kinds = [json.loads(line)["type"] for line in lines.splitlines()]
    assert kinds[-1] == last
    assert not {"done", "failed"} & set(kinds[:-1])
