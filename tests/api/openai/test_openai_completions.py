"""/v1/completions through the official client, a real server and a real runner (OAI-1..6)."""

import json
from collections.abc import Iterator
from itertools import pairwise

import httpx
import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI
from openai.types import Completion

from fixtures.scripted import scripted_store
from fixtures.server import Server, scripted_server
from fixtures.tiny import TURN_END
from forerun.api.openai.completions_dialect import TextDialect
from forerun.api.openai.completions_wire import TextRequest
from forerun.api.openai.logprobs import TextOffsets
from forerun.base.errors import ForerunError
from forerun.protocol.events import Chunk, Done, Figures, LogprobEntry, Progress

MODEL = "scripted"
END = "<|im_end|>"
HARD = "naïve 👩‍💻 日本 \ufffd"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = scripted_store(tmp_path_factory.mktemp("completions"))
    with scripted_server(settings) as server:
        yield server


def said(client: OpenAI, prompt: object, **fields: object) -> tuple[str, str]:
    """What is answered and why it ends: whole and in a stream, which must agree."""
    asked = {"model": MODEL, "prompt": prompt, **fields}
    choice = client.completions.create(**asked).choices[0]
    pieces = list(client.completions.create(**asked, stream=True))
    streamed = "".join(piece.choices[0].text for piece in pieces)
    reasons = [piece.choices[0].finish_reason for piece in pieces]
    assert reasons[:-1] == [None] * (len(reasons) - 1)
    assert (streamed, reasons[-1]) == (choice.text, choice.finish_reason)
    return choice.text, choice.finish_reason


def test_an_answer(client: OpenAI) -> None:
    """OAI-1, OAI-4: the prompt is taken as it is, control tokens included."""
    answer = client.completions.create(model=MODEL, prompt=f"SAY:hello{END}")
    assert answer.id.startswith("cmpl-")
    assert (answer.object, answer.model) == ("text_completion", MODEL)
    assert answer.system_fingerprint == "fp_forerun"
    (choice,) = answer.choices
    assert (choice.text, choice.index, choice.finish_reason) == ("hello", 0, "stop")
    assert choice.logprobs is None
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("SAY:hello") + 1
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_as_it_is_written(server: Server) -> None:
    """OAI-5"""
    body = {"model": MODEL, "prompt": f"SAY:hi{END}", "stream": True}
    usage = {"stream_options": {"include_usage": True}}
    answer = httpx.post(f"{server.url}/v1/completions", json={**body, **usage}, timeout=60)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *events, done, end = answer.text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    *pieces, last = [json.loads(event.removeprefix("data: ")) for event in events]
    assert {piece["object"] for piece in pieces} == {"text_completion"}
    assert all("usage" not in piece for piece in pieces)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] >= 2
    assert "usage" not in httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).text


@pytest.mark.parametrize("form", ["text", "list", "ids", "list of ids"])
def test_forms_of_a_prompt(client: OpenAI, form: str) -> None:
    """OAI-2"""
    text = f"SAY:hello{END}"
    ids = [*b"SAY:hello", TURN_END]
    prompt = {"text": text, "list": [text], "ids": ids, "list of ids": [ids]}[form]
    assert said(client, prompt) == ("hello", "stop")


def test_a_stop_string_over_several_tokens(client: OpenAI) -> None:
    """E01"""
    prompt = f"SAY:The quick brown fox{END}"
    assert said(client, prompt, stop=["own fox"]) == ("The quick br", "stop")


def test_characters_split_over_tokens(client: OpenAI) -> None:
    """E03"""
    assert said(client, f"SAY:{HARD}{END}") == (HARD, "stop")
    for cut in (6, 7, 8, 18):
        text, reason = said(client, f"SAY:{HARD}{END}", max_tokens=cut)
        kept = HARD.encode()[:cut].decode(errors="ignore")
        assert text in (kept, kept + "\ufffd")
        assert reason == "length"


def test_an_empty_text_is_harmless(client: OpenAI) -> None:
    """E15: there is nothing to continue, so the model is loaded and says nothing."""
    assert said(client, "") == ("", "stop")
    assert said(client, [""]) == ("", "stop")


def test_log_probabilities_in_columns(client: OpenAI) -> None:
    """API-16: a token inside a character begins where the character does."""
    asked = {"model": MODEL, "prompt": f"SAY:é!{END}", "logprobs": 2}
    logprobs = client.completions.create(**asked).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.tokens[2] == "!"
    assert logprobs.text_offset == [0, 0, 1]
    assert logprobs.token_logprobs is not None
    assert len(logprobs.token_logprobs) == 3
    assert logprobs.top_logprobs is not None
    assert "!" in logprobs.top_logprobs[2]
    streamed = [
        piece.choices[0].logprobs
        for piece in client.completions.create(**asked, stream=True)
        if piece.choices[0].logprobs is not None
    ]
    assert [o for each in streamed for o in each.text_offset or []] == logprobs.text_offset
    bare = client.completions.create(**{**asked, "logprobs": 0}).choices[0].logprobs
    assert bare is not None
    assert (bare.tokens, bare.top_logprobs) == (logprobs.tokens, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": ["a", "b"]}, "2 prompts"),
        ({"prompt": [[1], [2]]}, "2 prompts"),
        ({"prompt": None}, "prompt is None"),
        ({"prompt": []}, "prompt is"),
        ({"prompt": [[]]}, "prompt is"),
        ({"prompt": [1, "a"]}, "prompt is"),
        ({"prompt": [True]}, "prompt is"),
        ({"prompt": {"text": "x"}}, "prompt is"),
        ({"prompt": [99999]}, "99999"),
        ({"suffix": "end"}, "suffix is not offered"),
        ({"echo": True}, "echo is not offered"),
        ({"n": 2}, "n is 2"),
        ({"best_of": 3}, "best_of is 3"),
        ({"logprobs": True}, r"\$.logprobs"),
        ({"logprobs": 21}, "top_logprobs is 21"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"keep_alive": "abc"}, "keep_alive is 'abc'"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(
    client: OpenAI, fields: dict[str, object], message: str
) -> None:
    """OAI-6, 08 OPT, E09"""
    with pytest.raises(openai.BadRequestError, match=message) as raised:
        client.completions.create(model=MODEL, prompt="SAY:x", extra_body=fields)
    assert raised.value.type == "invalid_request_error"


def test_a_prompt_over_the_window_is_refused_with_both_numbers(client: OpenAI) -> None:
    """E07, API-12"""
    with pytest.raises(openai.BadRequestError, match=r"has 200 tokens .* context is 64"):
        client.completions.create(model=MODEL, prompt="x" * 200, extra_body={"num_ctx": 64})


def test_null_is_the_same_as_absent(client: OpenAI) -> None:
    """E13: every optional field, one at a time and all together."""
    fields = msgspec.structs.fields(TextRequest)
    optional = sorted(f.name for f in fields if not f.required and f.name != "prompt")
    assert {"stop", "max_tokens", "logprobs", "suffix", "stream"} < set(optional)
    together: dict[str, None] = dict.fromkeys(optional)
    for nulls in [*({name: None} for name in optional), together]:
        answer = client.completions.create(
            model=MODEL, prompt=f"SAY:hey{END}", extra_body={"max_tokens": 3, **nulls}
        )
        assert answer.choices[0].text == "hey", nulls


def test_events_of_a_stream() -> None:
    """OAI-5, E19, D15: nothing is sent of a prompt's progress but comments."""
    figures = Figures(
        prompt_tokens=1,
        cached_tokens=0,
        generated_tokens=1,
        prompt_seconds=0,
        generation_seconds=0,
    )
    dialect = TextDialect("m", include_usage=False)
    assert dialect.event(Progress(processed=1, total=2)) == b""
    assert dialect.event(Chunk(tokens=[1])) == b""
    assert dialect.quiet().startswith(b": ")
    assert b"[DONE]" not in dialect.failed(ForerunError("x"))
    end, done, _ = dialect.done(Done(reason="length", figures=figures)).split(b"\n\n")
    assert done == b"data: [DONE]"
    last = Completion.model_validate_json(end.removeprefix(b"data: "), strict=True)
    assert last.choices[0].finish_reason == "length"


def entry(token: bytes) -> LogprobEntry:
    return LogprobEntry(token=token.decode(errors="replace"), logprob=-1.0, bytes=list(token))


@given(st.text(max_size=6), st.data())
def test_offsets_are_where_the_characters_are(text: str, data: st.DataObject) -> None:
    """API-16: however a text is cut into tokens, and its tokens into pieces of a stream."""
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(raw) - 1, 1)))))
    bounds = [0, *(cut for cut in cuts if cut < len(raw)), len(raw)]
    tokens = [raw[a:b] for a, b in pairwise(bounds) if a < b]
    offsets = TextOffsets()
    found = []
    for token in tokens:
        columns = offsets.columns([entry(token)])
        assert columns is not None
        found += columns.text_offset
    starts = [sum(map(len, tokens[:place])) for place in range(len(tokens))]
    assert found == [len(raw[:start].decode(errors="ignore")) for start in starts]
