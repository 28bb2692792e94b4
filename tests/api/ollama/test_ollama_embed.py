"""/api/embed and /api/embeddings through the official client (08 API-13)."""

import http.client
import json
import math
import urllib.request
from collections.abc import Iterator, Sequence

import ollama
import pytest

from fixtures.server import Server, plain_server
from fixtures.stored import tiny_store

MODEL = "tiny"
SIZE = 64  # of its hidden states
ERRORS = [
    ("empty list", {"input": []}),
    ("empty", {"input": ["a", ""]}),
    ("holds 10001 texts", {"input": ["a"] * 10_001}),
    ("input", {"input": 5}),
    ("input", {"input": ["a", None]}),
    ("dimensions is 65", {"input": "a", "dimensions": 65}),
    ("dimensions is 0", {"input": "a", "dimensions": 0}),
    ("context is 512", {"input": "x" * 600, "truncate": False}),
    ("top_p is 5", {"input": "a", "options": {"top_p": 5}}),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = tiny_store(tmp_path_factory.mktemp("embed"))
    with plain_server(settings, FORERUN_THREADS="1") as server:
        yield server


def post(server: Server, path: str, body: object) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    try:
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def length(vector: Sequence[float]) -> float:
    return math.sqrt(sum(each * each for each in vector))


def test_a_vector_for_each_text(client: ollama.Client) -> None:
    """08 API-13: in order, of length 1, and the tokens of all together; figures as ever."""
    both = client.embed(MODEL, ["one", "three"])
    first, second = (client.embed(MODEL, text).embeddings[0] for text in ("one", "three"))
    assert list(both.embeddings) == [first, second]
    assert first != second
    assert [len(each) for each in both.embeddings] == [SIZE, SIZE]
    assert [length(each) for each in both.embeddings] == pytest.approx([1, 1])
    assert (both.model, both.prompt_eval_count) == (MODEL, len("one") + len("three"))
    assert both.total_duration is not None
    assert both.load_duration is not None
    assert both.total_duration > both.load_duration


def test_fewer_dimensions(client: ollama.Client) -> None:
    """08 API-13: cut, and then of length 1 again."""
    whole = client.embed(MODEL, "one").embeddings[0]
    cut = client.embed(MODEL, "one", dimensions=5).embeddings[0]
    rest = length(whole[:5])
    assert length(cut) == pytest.approx(1)
    assert cut == pytest.approx([each / rest for each in whole[:5]], rel=1e-5)


def test_the_older_form(client: ollama.Client) -> None:
    """08 API-13: one text, one vector, the same one."""
    found = client.embeddings(MODEL, "one").embedding
    assert list(found) == list(client.embed(MODEL, "one").embeddings[0])


def test_a_long_text_loses_its_end(client: ollama.Client) -> None:
    """08 API-13: as in Ollama, and the count says so."""
    cut = client.embed(MODEL, "x" * 600)
    assert cut.prompt_eval_count == 512
    assert cut.embeddings == client.embed(MODEL, "x" * 512, truncate=True).embeddings


@pytest.mark.parametrize("fields", [{}, {"input": None}, {"input": ""}])
def test_no_text_only_loads(server: Server, fields: dict[str, object]) -> None:
    """08 API-13, E13, E15: as in Ollama there is no vector then."""
    status, answer = post(server, "/api/embed", {"model": MODEL, **fields})
    assert (status, answer["embeddings"], answer["prompt_eval_count"]) == (200, [], 0)
    older = {"prompt" if name == "input" else name: value for name, value in fields.items()}
    assert post(server, "/api/embeddings", {"model": MODEL, **older}) == (200, {"embedding": []})


@pytest.mark.parametrize(("words", "fields"), ERRORS)
def test_what_cannot_be_embedded(server: Server, words: str, fields: dict[str, object]) -> None:
    """08 API-13, API-14: 400, and what is wrong."""
    status, answer = post(server, "/api/embed", {"model": MODEL, **fields})
    assert status == 400
    assert words in str(answer["error"])


def test_a_null_is_an_absent_field(server: Server) -> None:
    """E13: all together."""
    nulls = dict.fromkeys(("truncate", "dimensions", "options", "keep_alive"))
    given, absent = (
        post(server, "/api/embed", {"model": MODEL, "input": "one", **fields})
        for fields in (nulls, {})
    )
    assert given[0] == 200
    assert given[1]["embeddings"] == absent[1]["embeddings"]


def test_an_unknown_model(client: ollama.Client) -> None:
    """08 API-14."""
    for ask in (client.embed, client.embeddings):
        with pytest.raises(ollama.ResponseError, match="not found") as caught:
            ask("nope", "one")
        assert caught.value.status_code == 404


def test_a_conversation_outlives_an_embedding(server: Server) -> None:
    """08 API-13: inputs are not kept in the prefix cache, and push nothing out of it."""
    body = {"model": MODEL, "prompt": "a conversation " * 9, "options": {"num_predict": 1}}
    post(server, "/api/generate", {**body, "stream": False})
    post(server, "/api/embed", {"model": MODEL, "input": "another text"})
    _, after = post(server, "/api/generate", {**body, "stream": False})
    assert after["cached_count"] == int(str(after["prompt_eval_count"])) - 1


def test_each_is_logged_and_counted(client: ollama.Client, server: Server) -> None:
    """08 API-13: as answers are; loads too."""

    def counted(outcome: str) -> float:
        with urllib.request.urlopen(f"{server.url}/metrics") as metrics:
            line = f'forerun_requests_total{{model="tiny:latest",outcome="{outcome}"}} '
            found = [each for each in metrics.read().decode().splitlines() if line in each]
        return float(found[0].removeprefix(line)) if found else 0.0

    before = {outcome: counted(outcome) for outcome in ("embed", "load")}
    client.embed(MODEL, ["twelve", "eleven"])
    client.embed(MODEL, "")
    assert {outcome: counted(outcome) - before[outcome] for outcome in before} == {
        "embed": 1.0,
        "load": 1.0,
    }
    embed, load = [line for line in server.log.splitlines() if "api.answers" in line][-2:]
    assert "embed model=tiny:latest texts=2 prompt_tokens=12" in embed
    assert "load model=tiny:latest" in load
