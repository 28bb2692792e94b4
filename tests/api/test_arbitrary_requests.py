"""Requests that nobody thought of: valid bodies with one or more fields gone wrong (08 API-14).

CI sends 2,000; `FORERUN_FUZZ=10000 pytest tests/api/test_arbitrary_requests.py` sends more.
"""

import http.client
import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.scripted import THINKING_TOOLS, scripted_store
from fixtures.server import scripted_server

EXAMPLES = int(os.environ.get("FORERUN_FUZZ", "2000"))
USER = {"role": "user", "content": "SAY:ok"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FLAT_TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SHORT = {"num_predict": 3}

# path -> a body that is right, with many of its fields given
BODIES = {
    "/api/chat": {
        "model": "scripted",
        "messages": [USER],
        "stream": False,
        "options": SHORT,
        "tools": [TOOL],
        "think": True,
        "format": None,
        "keep_alive": "5m",
        "logprobs": True,
        "top_logprobs": 2,
    },
    "/api/generate": {
        "model": "scripted",
        "prompt": "SAY:ok",
        "stream": True,
        "options": {**SHORT, "temperature": 0.5, "stop": ["x"], "seed": 1, "num_ctx": 99},
        "system": "be brief",
        "raw": False,
        "suffix": "",
        "images": [],
        "keep_alive": 60,
    },
    "/api/embed": {"model": "scripted", "input": ["a", "b"], "dimensions": 4, "truncate": True},
    "/api/embeddings": {"model": "scripted", "prompt": "a", "options": SHORT},
    "/api/show": {"model": "scripted", "verbose": True},
    "/api/cache": {"model": "scripted", "clear": True},
    "/api/copy": {"source": "scripted", "destination": "copied"},
    "/api/create": {
        "model": "made",
        "from": "scripted",
        "parameters": SHORT,
        "messages": [USER],
        "license": ["free"],
        "stream": False,
    },
    "/api/push": {"model": "scripted", "stream": False},
    "/v1/chat/completions": {
        "model": "scripted",
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "SAY:ok"},
        ],
        "max_tokens": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": ["x"],
        "seed": 1,
        "logit_bias": {"5": 1},
        "logprobs": True,
        "top_logprobs": 2,
        "tools": [TOOL],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "reasoning_effort": "low",
        "n": 1,
    },
    "/v1/completions": {
        "model": "scripted",
        "prompt": "SAY:ok",
        "max_tokens": 3,
        "logprobs": 2,
        "echo": False,
        "stop": "x",
        "stream": False,
    },
    "/v1/embeddings": {"model": "scripted", "input": "a", "encoding_format": "base64"},
    "/v1/responses": {
        "model": "scripted",
        "input": [{"type": "message", "role": "user", "content": "SAY:ok"}],
        "instructions": "be brief",
        "max_output_tokens": 3,
        "tools": [FLAT_TOOL],
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}},
        "stream": True,
        "metadata": {"a": "b"},
    },
}

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, 2**63, -(2**63) - 1, 10**40, -1, 0]),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["", "json", "5m", "-1m", "auto", "../x", "\0", "scripted", "user"]),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=8), inner, max_size=4),
    ),
    max_leaves=8,
)


def places(value, path=()):
    """Every place inside a body."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def changed(body, place, value):
    """A copy of `body` with `value` at `place`."""
    if not place:
        return value
    copy = dict(body) if isinstance(body, dict) else list(body)
    copy[place[0]] = changed(copy[place[0]], place[1:], value)
    return copy


@st.composite
def requests(draw):
    """(path, body as bytes): a right body with one to three places replaced, or a cut one."""
    path = draw(st.sampled_from(sorted(BODIES)))
    body = BODIES[path]
    for _ in range(draw(st.integers(1, 3))):
        inside = [place for place in places(body) if place] or [()]
        likely = st.one_of(st.none(), leaves) if draw(st.booleans()) else values
        body = changed(body, draw(st.sampled_from(inside)), draw(likely))
    data = json.dumps(body, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    if draw(st.integers(0, 19)) == 0:
        data = data[: draw(st.integers(0, len(data)))]
    return path, data


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    store = scripted_store(tmp_path_factory.mktemp("arbitrary"), template=THINKING_TOOLS)
    with scripted_server(store) as process:
        yield process


def post(server, path, data):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", path, data)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(asked=requests())
def test_no_request_is_an_internal_error(server, asked):
    """Whatever is sent: an answer, or a 4xx, 501 or 503 of one line."""
    path, data = asked
    status, answer = post(server, path, data)
    assert status in (200, 501, 503) or 400 <= status < 500, (path, data, answer)
    assert b"internal error" not in answer, (path, data, answer)
    if status != 200:
        assert json.loads(answer)["error"]


def test_the_server_is_well_after_all_of_them(server):
    """E11: nothing is left at work, and a good request works."""
    assert "Traceback" not in server.log
    body = {"model": "scripted", "messages": [USER], "stream": False}
    status, answer = post(server, "/api/chat", json.dumps(body).encode())
    assert (status, json.loads(answer)["message"]["content"]) == (200, "ok")
