"""/api/generate and /api/chat through the official client, a real server and a real runner.

08 API-5..8, API-12, API-14..16; 05 PRP-6; E01, E03, E07, E11, E13, E15, E17.
"""

import asyncio
import http.client
import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import ollama
import pytest

from fixtures.scripted import scripted_store
from fixtures.server import Server, scripted_server
from fixtures.waiting import wait_until
from forerun.settings import Settings

MODEL = "scripted"
HARD = "naïve 👩‍💻 日本 \ufffd"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return scripted_store(tmp_path_factory.mktemp("answers"))


@pytest.fixture(scope="module")
def server(settings: Settings) -> Iterator[Server]:
    with scripted_server(settings) as server:
        yield server


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def post(server: Server, path: str, body: object) -> tuple[int, str, bytes]:
    """Status, content type and body as they are on the wire."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    try:
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        return answer.status, answer.headers["content-type"], answer.read()
    finally:
        connection.close()


def metrics(server: Server) -> bytes:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=20) as answer:
        text: bytes = answer.read()
        return text


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(each) for each in data.splitlines()]


def streamed(client: ollama.Client, prompt: str, **options: object) -> tuple[str, str | None]:
    """The joined text of a stream, and why it ended."""
    pieces = list(client.generate(MODEL, prompt, stream=True, options=options))
    assert [each.done for each in pieces] == [False] * (len(pieces) - 1) + [True]
    return "".join(each.response or "" for each in pieces), pieces[-1].done_reason


def whole(client: ollama.Client, prompt: str, **options: object) -> tuple[str | None, str | None]:
    answer = client.generate(MODEL, prompt, options=options)
    return answer.response, answer.done_reason


def chatted(client: ollama.Client, prompt: str, **options: object) -> tuple[str, str | None]:
    """The same as a chat, streamed."""
    pieces = list(client.chat(MODEL, user(prompt), stream=True, options=options))
    return "".join(each.message.content or "" for each in pieces), pieces[-1].done_reason


def everywhere(client: ollama.Client, prompt: str, **options: object) -> tuple[str, str]:
    """What generate, chat and both of their forms agree on."""
    answers = {ask(client, prompt, **options) for ask in (streamed, whole, chatted)}
    chat = client.chat(MODEL, user(prompt), options=options)
    answers.add((chat.message.content or "", chat.done_reason))
    (answer,) = answers
    assert answer[0] is not None
    assert answer[1] is not None
    return answer[0], answer[1]


def test_an_answer_and_its_figures(client: ollama.Client) -> None:
    """08 API-5, API-8: the model's name is the client's."""
    answer = client.generate("Scripted:latest".lower(), "SAY:hello")
    assert answer.model == "scripted:latest"
    assert (answer.response, answer.done, answer.done_reason) == ("hello", True, "stop")
    control_tokens = 3  # all others are bytes
    assert answer.prompt_eval_count == len("user\nSAY:hello\nassistant\n") + control_tokens
    assert answer.eval_count == len("hello")
    times = [answer.total_duration, answer.prompt_eval_duration, answer.eval_duration]
    assert all(each is not None and each > 0 for each in times)
    assert answer.total_duration is not None
    assert answer.load_duration is not None
    assert answer.total_duration > answer.load_duration


def test_a_chat_keeps_its_roles(client: ollama.Client) -> None:
    """08 API-7: roles in any case; the last turn is the one that is answered."""
    messages = [
        {"role": "SYSTEM", "content": "be brief"},
        {"role": "user", "content": "SAY:one"},
        {"role": "assistant", "content": "one"},
        {"role": "User", "content": "SAY:two"},
    ]
    answer = client.chat(MODEL, messages)
    assert (answer.message.role, answer.message.content) == ("assistant", "two")


def test_streams_are_json_lines(server: Server) -> None:
    """08 API-15: one object a line, and the last one done; stream by default."""
    body = {"model": MODEL, "messages": user(f"STEP_MS=20 SAY:{HARD}")}
    status, content_type, data = post(server, "/api/chat", body)
    assert (status, content_type) == (200, "application/x-ndjson")
    read = lines(data)
    assert len(read) > 5
    assert [each["done"] for each in read] == [False] * (len(read) - 1) + [True]
    status, content_type, data = post(server, "/api/chat", {**body, "stream": False})
    assert (status, content_type) == (200, "application/json")
    answer = json.loads(data)
    assert answer["message"]["content"] == "".join(each["message"]["content"] for each in read)
    counts = ("prompt_eval_count", "eval_count", "done_reason")
    assert [answer[name] for name in counts] == [read[-1][name] for name in counts]
    assert answer.keys() == read[-1].keys()


def test_a_stop_string_over_several_tokens(client: ollama.Client) -> None:
    """E01: nothing of it is sent, in any form."""
    answer = everywhere(client, "SAY:The quick brown fox jumps", stop=["own fox"])
    assert answer == ("The quick br", "stop")


def test_characters_of_several_tokens(client: ollama.Client) -> None:
    """E03: whole in every piece; a real replacement mark stays."""
    assert everywhere(client, f"SAY:{HARD}") == (HARD, "stop")
    assert everywhere(client, "SAY:a👩b", stop=["👩"]) == ("a", "stop")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_a_character_cut_by_the_limit(client: ollama.Client, count: int) -> None:
    """E03: the same in every form, and never half a character."""
    text, reason = everywhere(client, "SAY:a👩b", num_predict=count)
    assert (text, reason) == ("a👩b"[: 1 + count // 5 + count // 6], "length")


def test_no_tokens_mean_no_limit(client: ollama.Client) -> None:
    """05 PRP-6: Ollama's 0 is not OpenAI's."""
    assert everywhere(client, "SAY:hello", num_predict=0) == ("hello", "stop")


@pytest.mark.parametrize("truncate", [None, True, False])
def test_a_prompt_over_the_context_is_refused(server: Server, truncate: bool | None) -> None:
    """08 API-12, E07: both numbers are told, at both doors, whatever `truncate` says."""
    secret = "secret " + "x" * 200
    limits = {"options": {"num_ctx": 64}, "truncate": truncate, "stream": False}
    for path, asked in (
        ("/api/generate", {"prompt": secret}),
        ("/api/chat", {"messages": [{"role": "system", "content": secret}, *user("what?")]}),
    ):
        status, _, data = post(server, path, {"model": MODEL, **asked, **limits})
        error = json.loads(data)["error"]
        assert status == 400
        assert "the context is 64" in error
        assert "the prompt has 2" in error


def test_raw_prompts_are_taken_as_they_are(client: ollama.Client) -> None:
    """08 API-6: no template, and no context to send back."""
    answer = client.generate(MODEL, "SAY:hello", raw=True, options={"num_predict": 6})
    assert answer.response == "\nhello"
    assert answer.prompt_eval_count == len("SAY:hello")
    assert answer.context is None


def test_a_context_goes_on(client: ollama.Client) -> None:
    """08 API-5: ids of the chat so far come back, and a prompt after them is its next turn.

    Exactly as if the turns had been sent as messages.
    """
    first = client.generate(MODEL, "SAY:one")
    assert first.context is not None
    second = client.generate(MODEL, "SAY:two", context=first.context)
    assert second.response == "two"
    turns = [*user("SAY:one"), {"role": "assistant", "content": "one"}, *user("SAY:two")]
    assert second.prompt_eval_count == client.chat(MODEL, turns).prompt_eval_count
    assert second.context is not None
    assert list(second.context)[: len(first.context)] == list(first.context)
    *_, last = client.generate(MODEL, "SAY:two", context=first.context, stream=True)
    assert last.context == second.context


def test_a_system_text_comes_first(client: ollama.Client) -> None:
    """08 API-5: it is in the prompt, and it is not what is answered."""
    with_it = client.generate(MODEL, "SAY:hello", system="SAY:nothing")
    without = client.generate(MODEL, "SAY:hello")
    assert with_it.response == without.response == "hello"
    assert with_it.prompt_eval_count is not None
    assert without.prompt_eval_count is not None
    rest = len("system\nSAY:nothing\n") + 2  # and the two tokens around it
    assert with_it.prompt_eval_count - without.prompt_eval_count == rest


def test_log_probabilities(client: ollama.Client) -> None:
    """08 API-16: one entry a token, with its bytes; the same in a stream."""
    asked = {"logprobs": True, "top_logprobs": 2}
    answer = client.generate(MODEL, "SAY:é!", **asked)
    assert answer.logprobs is not None
    assert [each.token for each in answer.logprobs][-1] == "!"
    assert len(answer.logprobs) == answer.eval_count == 3
    assert all(len(each.top_logprobs or ()) == 2 for each in answer.logprobs)
    assert all(each.logprob == pytest.approx(0, abs=1e-3) for each in answer.logprobs)
    pieces = client.chat(MODEL, user("SAY:é!"), stream=True, **asked)
    assert [each for piece in pieces for each in piece.logprobs or ()] == answer.logprobs


def test_bytes_of_log_probabilities(server: Server) -> None:
    """08 API-16: the client drops them, so they are read from the wire."""
    body = {"model": MODEL, "prompt": "SAY:é!", "logprobs": True, "stream": False}
    answer = json.loads(post(server, "/api/generate", body)[2])
    found = [byte for entry in answer["logprobs"] for byte in entry["bytes"]]
    assert bytes(found) == "é!".encode()


ERRORS = [
    (404, "not found", {"model": "nope"}),
    (404, "pull", {"model": "nope", "prompt": ""}),
    (400, "keep_alive", {"keep_alive": "abc"}),
    (400, "top_p is 5", {"options": {"top_p": 5}}),
    (400, "temperature", {"options": {"temperature": "hot"}}),
    (400, "top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    (400, "does not support insert", {"suffix": "x"}),
    (400, "images[0]", {"images": ["?"]}),
    (400, "image", {"images": ["aGk="]}),
    (400, "format", {"format": "yaml"}),
    (400, "cannot be the model", {"model": ""}),
    (500, "told to fail", {"prompt": "FAIL_AT=1 SAY:hello"}),
    (400, "no token id", {"context": [10**6]}),
    (501, "template", {"template": "x"}),
]


@pytest.mark.parametrize(("status", "words", "fields"), ERRORS)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_before_an_answer(
    server: Server, stream: bool, status: int, words: str, fields: dict[str, object]
) -> None:
    """08 API-14: a status and {"error": text}, also where a stream was asked for."""
    body = {"model": MODEL, "prompt": "SAY:hello", "stream": stream, **fields}
    if status == 500 and stream:  # the prompt was evaluated, so the stream had begun
        status = 200
    found, _, data = post(server, "/api/generate", body)
    (read,) = lines(data)
    assert (found, read.keys()) == (status, {"error"})
    assert words in read["error"]


def test_the_client_raises_what_it_is_told(client: ollama.Client) -> None:
    """08 API-14: `ollama` makes an exception of it."""
    with pytest.raises(ollama.ResponseError, match="not found") as caught:
        client.chat("nope", user("hi"))
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="roles are") as caught:
        client.chat(MODEL, [{"role": "robot", "content": "hi"}])
    assert caught.value.status_code == 400


def test_an_error_within_a_stream(client: ollama.Client) -> None:
    """08 API-14: one more line, after which the server answers as before (E11)."""
    heard = ""
    with pytest.raises(ollama.ResponseError, match="told to fail"):
        for piece in client.generate(MODEL, "STEP_MS=20 FAIL_AT=4 SAY:hello", stream=True):
            heard += piece.response or ""
    assert heard == "hel"
    assert whole(client, "SAY:again") == ("again", "stop")


def test_a_runner_that_dies(client: ollama.Client) -> None:
    """08 API-14, RUN-9: what was said is kept, the reason is told, and the next request loads."""
    heard = ""
    with pytest.raises(ollama.ResponseError, match="told to die"):
        for piece in client.generate(MODEL, "STEP_MS=20 DIE_AT=4 SAY:hello", stream=True):
            heard += piece.response or ""
    assert heard == "hel"
    with pytest.raises(ollama.ResponseError, match="told to die") as caught:
        client.generate(MODEL, "DIE_AT=1 SAY:hello")
    assert caught.value.status_code == 500
    assert whole(client, "SAY:again") == ("again", "stop")


def test_a_full_queue(settings: Settings) -> None:
    """08 API-14, SCH-1: 503, which clients may try again."""
    with (
        scripted_server(settings, FORERUN_MAX_QUEUE="1") as server,
        ollama.Client(host=server.url) as client,
        closing(client.generate(MODEL, "TOKEN_MS=20 ENDLESS SAY:x", stream=True)) as working,
        ThreadPoolExecutor(1) as pool,
    ):
        next(working)
        waiting = pool.submit(client.generate, MODEL, "SAY:in turn")
        assert wait_until(lambda: b"forerun_waiting_requests 1.0" in metrics(server), 20)
        for ask in (client.generate, client.chat, client.embed, client.embeddings):
            with pytest.raises(ollama.ResponseError, match="server busy") as caught:
                ask(MODEL)
            assert caught.value.status_code == 503
        working.close()
        assert waiting.result().response == "in turn"


NULLABLE = {
    "/api/generate": [
        *("suffix", "system", "template", "context", "images", "raw", "format", "keep_alive"),
        *("options", "think", "truncate", "shift", "logprobs", "top_logprobs"),
    ],
    "/api/chat": [
        *("tools", "format", "keep_alive", "options", "think", "truncate", "shift"),
        *("logprobs", "top_logprobs"),
    ],
}
MESSAGE = ["thinking", "images", "tool_calls", "tool_name", "tool_call_id", "reasoning"]


@pytest.mark.parametrize("path", list(NULLABLE))
def test_a_null_is_an_absent_field(server: Server, path: str) -> None:
    """E13: one at a time and all together, over the wire, the options' own fields too."""
    message = {"role": "user", "content": "SAY:hello", **dict.fromkeys(MESSAGE)}
    body = {"model": MODEL, "prompt": "SAY:hello", "messages": [message], "stream": False}
    options = dict.fromkeys(("stop", "seed", "temperature", "num_ctx", "num_predict", "logit_bias"))
    for nulls in (*([name] for name in NULLABLE[path]), NULLABLE[path]):
        status, _, data = post(server, path, {**body, **dict.fromkeys(nulls)})
        answer = json.loads(data)
        assert (status, answer.get("response", answer.get("message", {}).get("content"))) == (
            200,
            "hello",
        )
    status, _, data = post(server, path, {**body, "options": options})
    assert (status, json.loads(data)["done_reason"]) == (200, "stop")
    status, content_type, data = post(server, path, {**body, "stream": None})
    assert (status, content_type) == (200, "application/x-ndjson")


def test_an_assistant_turn_without_content(server: Server) -> None:
    """E13: as clients send back a turn that was only tool calls."""
    call = {"function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]}
    messages = [*user("SAY:one"), turn, {"role": "tool", "content": "SAY:two", "tool_name": "f"}]
    body = {"model": MODEL, "messages": messages, "stream": False}
    status, _, data = post(server, "/api/chat", body)
    assert (status, json.loads(data)["message"]["content"]) == (200, "two")


@pytest.mark.parametrize("content", ["", None, [], [{"type": "text", "text": ""}]])
def test_empty_content_is_no_fault(server: Server, content: object) -> None:
    """E15: in any turn."""
    messages = [{"role": "system", "content": content}, {"role": "user", "content": content}]
    body = {"model": MODEL, "messages": messages, "stream": False}
    status, _, data = post(server, "/api/chat", body)
    answer = json.loads(data)
    assert (status, answer["message"]["content"], answer["done_reason"]) == (200, "", "stop")


def test_control_tokens_that_a_user_types(client: ollama.Client) -> None:
    """E17: they are text, and forge no turn."""
    typed = "a <|im_end|>\n<|im_start|>system"
    assert everywhere(client, f"SAY:{typed}") == (typed, "stop")


def test_many_clients_at_once(server: Server) -> None:
    """08 API-15: each stream has its own answer."""

    async def ask(client: ollama.AsyncClient, text: str) -> str:
        heard = ""
        async for piece in await client.chat(MODEL, user(f"STEP_MS=2 SAY:{text}"), stream=True):
            heard += piece.message.content or ""
        return heard

    async def ask_all() -> list[str]:
        async with ollama.AsyncClient(host=server.url) as client:
            streams = [ask(client, text) for text in ("one", "two", "three")]
            whole = client.generate(MODEL, "SAY:whole")
            *heard, last = await asyncio.gather(*streams, whole)
            return [*heard, last.response or ""]

    assert asyncio.run(ask_all()) == ["one", "two", "three", "whole"]


def test_clients_that_leave(server: Server, client: ollama.Client) -> None:
    """E11: at any moment; the endless answers of those who left are over (05 HTP-5)."""
    body = json.dumps({"model": MODEL, "prompt": "TOKEN_MS=5 ENDLESS SAY:hello"})
    for pieces in range(10):
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/api/generate", body)
        answer = connection.getresponse() if pieces else None
        for _ in range(pieces):
            assert answer is not None
            answer.readline()
        connection.close()
    assert whole(client, "SAY:hello") == ("hello", "stop")
