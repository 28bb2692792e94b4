"""Requests that are wrong in every way we could think of: 08 API-14, OAI-6, OPT.

Each is answered with a status from 400 to 499 (or 501 for what is understood and not offered) and
one line that says what is wrong, never with a 500 and never with a trace; and the next request
works.
"""

import http.client
import json

import pytest

from fixtures.scripted import scripted_store
from fixtures.server import scripted_server

CHAT, GENERATE, EMBED = "/api/chat", "/api/generate", "/api/embed"
SHOW, COPY, CREATE, PULL, DELETE = (
    "/api/show",
    "/api/copy",
    "/api/create",
    "/api/pull",
    "/api/delete",
)
V1_CHAT, V1_COMPLETE, V1_EMBED, V1_RESPOND = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
)
MODEL = {"model": "scripted"}
USER = [{"role": "user", "content": "SAY:x"}]
ZEROS = "sha256:" + "0" * 64


def chat(**fields):
    return {**MODEL, "messages": USER, "stream": False, **fields}


def generate(**fields):
    return {**MODEL, "prompt": "SAY:x", "stream": False, **fields}


def option(**fields):
    return generate(options=fields)


def respond(**fields):
    return {**MODEL, "input": "SAY:x", **fields}


def complete(**fields):
    return {**MODEL, "prompt": "SAY:x", **fields}


def nested(depth):
    return "[" * depth + "]" * depth


# what it is: method, path, body (text as it stands, or an object)
MALFORMED = {
    # what is no JSON, or not of the right kind
    "no body": ("POST", CHAT, ""),
    "half a body": ("POST", CHAT, '{"model":'),
    "a list": ("POST", CHAT, "[]"),
    "a number": ("POST", GENERATE, "7"),
    "null": ("POST", V1_CHAT, "null"),
    "two objects": ("POST", CHAT, '{"model":"scripted"}{"model":"scripted"}'),
    "NaN": ("POST", GENERATE, '{"model":"scripted","prompt":"x","options":{"temperature":NaN}}'),
    "Infinity": ("POST", GENERATE, '{"model":"scripted","prompt":"x","keep_alive":Infinity}'),
    "half a surrogate": ("POST", GENERATE, '{"model":"scripted","prompt":"\\ud83d"}'),
    "bytes that are no UTF-8": ("POST", GENERATE, b'{"model":"scripted","prompt":"\xff\xfe"}'),
    "single quotes": ("POST", CHAT, "{'model':'scripted'}"),
    "a form": ("POST", CHAT, "model=scripted&prompt=x"),
    "deep lists": ("POST", CHAT, nested(100_000)),
    "deep tools": (
        "POST",
        CHAT,
        f'{{"model":"scripted","messages":[],"tools":[{{"x":{nested(5000)}}}]}}',
    ),
    "deep objects in options": (
        "POST",
        GENERATE,
        '{"model":"scripted","options":' + '{"a":' * 9000 + "1" + "}" * 9000 + "}",
    ),
    # fields of a wrong type
    "no model": ("POST", CHAT, {"messages": USER}),
    "model is a number": ("POST", CHAT, {"model": 7, "messages": USER}),
    "model is null": ("POST", CHAT, {"model": None, "messages": USER}),
    "messages is a text": ("POST", CHAT, chat(messages="hello")),
    "a message is a text": ("POST", CHAT, chat(messages=["hello"])),
    "a message without a role": ("POST", CHAT, chat(messages=[{"content": "x"}])),
    "a role that is none": ("POST", CHAT, chat(messages=[{"role": "wizard", "content": "x"}])),
    "content is a number": ("POST", CHAT, chat(messages=[{"role": "user", "content": 7}])),
    "stream is a text": ("POST", CHAT, chat(stream="yes")),
    "prompt is a number": ("POST", GENERATE, generate(prompt=7)),
    "tools is an object": ("POST", CHAT, chat(tools={"type": "function"})),
    "a tool is a text": ("POST", CHAT, chat(tools=["weather"])),
    "options is a list": ("POST", GENERATE, generate(options=[1])),
    "images is a text": ("POST", GENERATE, generate(images="x")),
    "bad base64": ("POST", GENERATE, generate(images=["%%%%"])),
    "an image by URL": ("POST", GENERATE, generate(images=["file:///etc/passwd"])),
    "think at a strange level": ("POST", CHAT, chat(think="enormously")),
    "think is a number": ("POST", CHAT, chat(think=7)),
    "think without thinking": ("POST", CHAT, chat(think=True)),
    "tools without tools": (
        "POST",
        CHAT,
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}]),
    ),
    "format that is no schema": ("POST", CHAT, chat(format="xml")),
    "format is a number": ("POST", CHAT, chat(format=7)),
    "top_logprobs over its range": ("POST", CHAT, chat(logprobs=True, top_logprobs=21)),
    "top_logprobs is negative": ("POST", CHAT, chat(logprobs=True, top_logprobs=-1)),
    "raw with a system prompt": ("POST", GENERATE, generate(raw=True, system="x")),
    "raw with a template": ("POST", GENERATE, generate(raw=True, template="x")),
    "a suffix": ("POST", GENERATE, generate(suffix="x")),
    "a prompt over the context": ("POST", GENERATE, generate(prompt="x" * 9000)),
    "num_ctx over by a prompt": (
        "POST",
        GENERATE,
        generate(prompt="x" * 99, options={"num_ctx": 16}),
    ),
    # options out of range
    "temperature below zero": ("POST", GENERATE, option(temperature=-1)),
    "temperature as text": ("POST", GENERATE, option(temperature="hot")),
    "temperature as bool": ("POST", GENERATE, option(temperature=True)),
    "a huge temperature": (
        "POST",
        GENERATE,
        '{"model":"scripted","options":{"temperature":1e999}}',
    ),
    "top_p above one": ("POST", GENERATE, option(top_p=1.1)),
    "top_k is half": ("POST", GENERATE, option(top_k=0.5)),
    "a huge top_k": ("POST", GENERATE, option(top_k=10**30)),
    "a huge seed": ("POST", GENERATE, option(seed=2**70)),
    "num_ctx too small": ("POST", GENERATE, option(num_ctx=3)),
    "num_predict as text": ("POST", GENERATE, option(num_predict="many")),
    "stop is a number": ("POST", GENERATE, option(stop=7)),
    "stop holds nothing": ("POST", GENERATE, option(stop=[""])),
    "logit_bias for no token": ("POST", GENERATE, option(logit_bias={"99999": 1})),
    "logit_bias out of range": ("POST", GENERATE, option(logit_bias={"5": 1000})),
    "a drafter that is none": ("POST", GENERATE, option(draft="magic")),
    "keep_alive as words": ("POST", GENERATE, generate(keep_alive="abc")),
    "keep_alive is a list": ("POST", GENERATE, generate(keep_alive=[5])),
    "keep_alive is true": ("POST", GENERATE, generate(keep_alive=True)),
    # names
    "a model that is not there": ("POST", CHAT, chat(model="nothing")),
    "a name that climbs": ("POST", CHAT, chat(model="../../etc/passwd")),
    "an empty name": ("POST", CHAT, chat(model="")),
    "a name with a NUL": ("POST", SHOW, {"model": "a\0b"}),
    "an absolute name": ("POST", SHOW, {"model": "/etc/passwd"}),
    "an endless name": ("POST", SHOW, {"model": "x" * 10_000}),
    "delete what is not there": ("DELETE", DELETE, {"model": "nothing"}),
    "delete what climbs": ("DELETE", DELETE, {"model": "../scripted"}),
    "copy from nothing": ("POST", COPY, {"source": "nothing", "destination": "b"}),
    "copy to a climbing name": ("POST", COPY, {"source": "scripted", "destination": "../b"}),
    "copy to no name": ("POST", COPY, {"source": "scripted"}),
    "create without a source": ("POST", CREATE, {"model": "new", "stream": False}),
    "create from nothing": ("POST", CREATE, {"model": "new", "from": "nothing", "stream": False}),
    "create with a climbing file": (
        "POST",
        CREATE,
        {"model": "new", "files": {"../../x": ZEROS}, "stream": False},
    ),
    "create with a blob that is not there": (
        "POST",
        CREATE,
        {"model": "new", "files": {"config.json": ZEROS}, "stream": False},
    ),
    "create with a bad digest": (
        "POST",
        CREATE,
        {"model": "new", "files": {"config.json": "sha256:../x"}, "stream": False},
    ),
    "create with bad parameters": (
        "POST",
        CREATE,
        {"model": "new", "from": "scripted", "parameters": {"top_p": 7}, "stream": False},
    ),
    "pull a climbing name": ("POST", PULL, {"model": "../../x", "stream": False}),
    "a blob's digest is none": ("POST", "/api/blobs/sha256:xyz", "x"),
    "a blob that is another": ("POST", f"/api/blobs/{ZEROS}", "x"),
    "a blob's path climbs": ("POST", "/api/blobs/..%2f..%2fetc%2fpasswd", "x"),
    # embeddings
    "embed a number": ("POST", EMBED, {**MODEL, "input": 7}),
    "embed no texts": ("POST", EMBED, {**MODEL, "input": []}),
    "embed in no dimensions": ("POST", EMBED, {**MODEL, "input": "x", "dimensions": 0}),
    "embed in too many": ("POST", EMBED, {**MODEL, "input": "x", "dimensions": 10**6}),
    # /v1
    "v1: no messages": ("POST", V1_CHAT, MODEL),
    "v1: empty messages": ("POST", V1_CHAT, chat(messages=[])),
    "v1: a role that is none": ("POST", V1_CHAT, chat(messages=[{"role": "x", "content": "y"}])),
    "v1: n": ("POST", V1_CHAT, chat(n=2)),
    "v1: temperature as text": ("POST", V1_CHAT, chat(temperature="hot")),
    "v1: max_tokens is negative": ("POST", V1_CHAT, chat(max_tokens=-5)),
    "v1: max_tokens is huge": ("POST", V1_CHAT, chat(max_tokens=10**40)),
    "v1: logit_bias for no token": ("POST", V1_CHAT, chat(logit_bias={"x": 1})),
    "v1: a picture by URL": (
        "POST",
        V1_CHAT,
        chat(
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}],
                }
            ]
        ),
    ),
    "v1: a part that is none": (
        "POST",
        V1_CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "smell"}]}]),
    ),
    "v1: an effort that is none": ("POST", V1_CHAT, chat(reasoning_effort="heroic")),
    "v1: response_format that is none": ("POST", V1_CHAT, chat(response_format={"type": "xml"})),
    "v1: top_logprobs without logprobs": ("POST", V1_CHAT, chat(top_logprobs=3)),
    "v1: keep_alive as words": ("POST", V1_CHAT, chat(keep_alive="abc")),
    "v1: several prompts": ("POST", V1_COMPLETE, complete(prompt=["a", "b"])),
    "v1: prompt is an object": ("POST", V1_COMPLETE, complete(prompt={"a": 1})),
    "v1: ids that are none": ("POST", V1_COMPLETE, complete(prompt=[99_999_999])),
    "v1: best_of": ("POST", V1_COMPLETE, complete(best_of=3)),
    "v1: embed an object": ("POST", V1_EMBED, {**MODEL, "input": {"a": 1}}),
    "v1: an encoding that is none": (
        "POST",
        V1_EMBED,
        {**MODEL, "input": "x", "encoding_format": "x"},
    ),
    "v1: a response to nothing": ("POST", V1_RESPOND, MODEL),
    "v1: a response to a number": ("POST", V1_RESPOND, respond(input=7)),
    "v1: a response to an unknown item": ("POST", V1_RESPOND, respond(input=[{"type": "smell"}])),
    "v1: a response after another": ("POST", V1_RESPOND, respond(previous_response_id="resp_1")),
    "v1: a tool that is none": ("POST", V1_RESPOND, respond(tools=[{"type": "web_search"}])),
    "v1: a model that is not there": ("GET", "/v1/models/nothing", ""),
    # routes
    "no such route": ("POST", "/api/nothing", {}),
    "no such method": ("PUT", CHAT, {}),
    "a path that climbs": ("GET", "/../../etc/passwd", ""),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with scripted_server(scripted_store(tmp_path_factory.mktemp("malformed"))) as process:
        yield process


def ask(server, method, path, body):
    """(status, body) of one request."""
    data = json.dumps(body) if isinstance(body, dict) else body
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, data.encode() if isinstance(data, str) else data)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def message_of(path, body):
    """The one line of an error in its path's dialect."""
    error = json.loads(body)["error"]
    return error["message"] if path.startswith("/v1/") else error


@pytest.mark.parametrize("name", MALFORMED)
def test_a_mistake_is_told_in_one_line_and_the_next_request_works(server, name):
    """08 API-14, OAI-6."""
    method, path, body = MALFORMED[name]
    status, answer = ask(server, method, path, body)
    assert 400 <= status < 500 or status == 501, answer
    said = message_of(path, answer)
    assert isinstance(said, str)
    assert 8 < len(said) < 500
    assert "\n" not in said
    assert "Traceback" not in said
    assert "/src/forerun" not in said
    status, answer = ask(
        server, "POST", CHAT, chat(messages=[{"role": "user", "content": "SAY:ok"}])
    )
    assert (status, json.loads(answer)["message"]["content"]) == (200, "ok")


def test_nothing_of_it_was_an_internal_error(server):
    assert "Traceback" not in server.log
    assert "internal error" not in server.log


def test_there_are_enough_of_them():
    assert len(MALFORMED) >= 60
