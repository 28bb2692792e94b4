"""Tool calls and thinking through the native API, the official client and a real runner.

08 API-9, API-10; B13, D13, D15, E05.
"""

import http.client
import json
from collections.abc import Iterator, Sequence
from typing import Any

import ollama
import pytest

from fixtures.scripted import PLAIN, THINKING_TOOLS, scripted_store
from fixtures.server import Server, scripted_server

ABLE, SIMPLE = "able", "simple"
FIRST = {"city": 'a "quoted" \\ word\n', "unit": None}
SECOND = {"days": [1, 2], "city": "日本 👩‍💻 \ufffd"}
CALLS = "".join(
    f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'
    for arguments in (json.dumps(FIRST, ensure_ascii=False), json.dumps(SECOND))
)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
THOUGHT = "<think>\nwhy\n</think>\n\nbecause"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tools")
    scripted_store(folder, names=[SIMPLE], template=PLAIN)
    settings = scripted_store(folder, names=[ABLE], template=THINKING_TOOLS)
    with scripted_server(settings) as server:
        yield server


def user(script: str) -> dict[str, Any]:
    return {"role": "user", "content": f"SAY:{script}"}


def post(server: Server, **fields: object) -> list[dict[str, Any]]:
    """A chat's objects as they are on the wire."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    try:
        connection.request("POST", "/api/chat", json.dumps({"model": ABLE, **fields}))
        answer = connection.getresponse()
        data = answer.read()
        assert answer.status == 200, data
        return [json.loads(line) for line in data.splitlines()]
    finally:
        connection.close()


def calls_of(objects: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [call for each in objects for call in each["message"].get("tool_calls", [])]


@pytest.mark.parametrize("stream", [False, True])
def test_two_calls(server: Server, *, stream: bool) -> None:
    """08 API-10, E05: numbered, each with an id of its own, arguments as objects in their order."""
    objects = post(server, messages=[user(f"Wait.{CALLS}")], tools=[TOOL], stream=stream)
    calls = calls_of(objects)
    assert [call["function"]["index"] for call in calls] == [0, 1]
    assert [call["function"]["name"] for call in calls] == ["weather", "weather"]
    assert [call["function"]["arguments"] for call in calls] == [FIRST, SECOND]
    assert list(calls[1]["function"]["arguments"]) == ["days", "city"]
    ids = {call["id"] for call in calls}
    assert len(ids) == 2
    assert all(each.startswith("call_") and len(each) == len("call_") + 8 for each in ids)
    assert "".join(each["message"]["content"] for each in objects) == "Wait."
    assert objects[-1]["done_reason"] == "stop"


def weather(city: str) -> str:
    """How warm it is.

    Args:
        city: where
    """
    return f"11 degrees in {city}"


def test_a_round_with_a_tool(client: ollama.Client) -> None:
    """08 API-7, API-10: a Python function as the client describes it, called and answered."""
    script = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    messages: list[Any] = [user(script)]
    answer = client.chat(ABLE, messages, tools=[weather])
    assert answer.message.tool_calls is not None
    (call,) = answer.message.tool_calls
    result = weather(**call.function.arguments)
    messages += [
        answer.message,
        {"role": "tool", "tool_name": call.function.name, "content": f"SAY:{result}"},
    ]
    answer = client.chat(ABLE, messages, tools=[weather])
    assert answer.message.content == "11 degrees in Rome"
    assert not answer.message.tool_calls


@pytest.mark.parametrize("arguments", [{"city": "Rome"}, '{"city": "Rome"}'])
def test_calls_that_come_back(server: Server, arguments: object) -> None:
    """08 API-7: as an object or as text, they are one prompt."""
    call = {"id": "call_1", "function": {"name": "weather", "arguments": arguments}}
    messages = [
        user("x"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "SAY:done"},
    ]
    (whole,) = post(server, messages=messages, tools=[TOOL], stream=False)
    (again,) = post(
        server,
        messages=[messages[0], {**messages[1], "content": ""}, messages[2]],
        tools=[TOOL],
        stream=False,
    )
    assert whole["message"]["content"] == "done"
    assert whole["prompt_eval_count"] == again["prompt_eval_count"]
    assert again["cached_count"] == again["prompt_eval_count"] - 1


@pytest.mark.parametrize("count", [12, 20, 40, 60])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_cut_by_the_limit(server: Server, count: int, *, stream: bool) -> None:
    """D15: partial text or no call, the end says so, and the connection holds."""
    options = {"num_predict": count}
    objects = post(server, messages=[user(CALLS)], tools=[TOOL], options=options, stream=stream)
    assert objects[-1]["done_reason"] == "length"
    assert objects[-1]["eval_count"] == count
    assert calls_of(objects) == []


@pytest.mark.parametrize("think", [None, True, "low", "max"])
def test_thinking_is_apart(client: ollama.Client, think: Any) -> None:
    """08 API-9: by default and on demand, at both doors, streamed and whole."""
    chat = client.chat(ABLE, [user(THOUGHT)], think=think)
    assert (chat.message.thinking, chat.message.content) == ("why", "because")
    generated = client.generate(ABLE, f"SAY:{THOUGHT}", think=think)
    assert (generated.thinking, generated.response) == ("why", "because")
    pieces = list(client.chat(ABLE, [user(THOUGHT)], think=think, stream=True))
    thoughts = [piece.message.thinking or "" for piece in pieces]
    texts = [piece.message.content or "" for piece in pieces]
    assert ("".join(thoughts), "".join(texts)) == ("why", "because")
    first_text = next(place for place, text in enumerate(texts) if text)
    assert not any(thoughts[first_text + 1 :])


def test_no_thinking_where_none_is_wanted(client: ollama.Client) -> None:
    """08 API-9, PAR-2: nothing of the empty thought reaches the text."""
    answer = client.chat(ABLE, [user("because")], think=False)
    assert (answer.message.thinking, answer.message.content) == (None, "because")


@pytest.mark.parametrize(
    ("model", "fields", "words"),
    [
        (ABLE, {"think": "hard"}, "think is 'hard'"),
        (SIMPLE, {"think": True}, "does not support thinking"),
        (SIMPLE, {"tools": [TOOL]}, "does not support tools"),
    ],
)
def test_what_a_model_cannot_do(
    client: ollama.Client, model: str, fields: dict[str, Any], words: str
) -> None:
    """08 API-9, API-10, API-17."""
    with pytest.raises(ollama.ResponseError, match=words) as caught:
        client.chat(model, [user("hi")], **fields)
    assert caught.value.status_code == 400


@pytest.mark.parametrize("fields", [{"think": False}, {"think": None, "tools": []}])
def test_asking_for_nothing_is_no_fault(client: ollama.Client, fields: dict[str, Any]) -> None:
    """08 API-9, E13: as clients send it to every model."""
    assert client.chat(SIMPLE, [user("hi")], **fields).message.content == "hi"


@pytest.mark.parametrize("given", ["", None])
def test_no_format_is_no_fault(client: ollama.Client, given: Any) -> None:
    """D13."""
    assert client.chat(SIMPLE, [user("hi")], format=given).message.content == "hi"


@pytest.mark.parametrize("given", ["json", {"type": "object"}, '{"type": "object"}'])
def test_a_format_is_not_passed_over(server: Server, given: object) -> None:
    """D13: however it is sent."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    try:
        body = {"model": SIMPLE, "messages": [user("hi")], "format": given}
        connection.request("POST", "/api/chat", json.dumps(body))
        answer = connection.getresponse()
        assert answer.status == 501
        assert "format" in json.loads(answer.read())["error"]
    finally:
        connection.close()


@pytest.mark.parametrize("name", ["thinking", "reasoning", "reasoning_content"])
def test_a_thought_that_comes_back_is_known_again(server: Server, name: str) -> None:
    """B13: three turns; what was thought and said is not evaluated again."""
    messages = [user(f"{THOUGHT} {name}")]
    for _ in range(3):
        (answer,) = post(server, messages=messages, stream=False)
        message = answer["message"]
        turn = {"role": "assistant", "content": message["content"], name: message["thinking"]}
        messages = [*messages, turn, user(THOUGHT)]
        known = answer["prompt_eval_count"] + answer["eval_count"]
        (following,) = post(server, messages=messages, stream=False)
        assert following["cached_count"] >= known
    forgetful = [{**each, name: None} for each in messages]
    (answer,) = post(server, messages=forgetful, stream=False)
    assert 0 < answer["cached_count"] < following["cached_count"]
