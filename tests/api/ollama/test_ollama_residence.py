"""Loading, keeping and unloading models through the native API, and /api/ps.

08 API-1, API-6, API-7, SCH-4; E09, E15.
"""

import http.client
import json
from collections.abc import Iterator
from datetime import UTC, datetime

import ollama
import pytest

from fixtures.scripted import CONTEXT, scripted_store
from fixtures.server import Server, scripted_server
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store

MODEL, OTHER = "scripted", "other"
NEVER = 1e9  # seconds: longer than anybody waits


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return scripted_store(tmp_path_factory.mktemp("residence"), names=(MODEL, OTHER))


@pytest.fixture(scope="module")
def server(settings: Settings) -> Iterator[Server]:
    with scripted_server(settings) as server:
        yield server


@pytest.fixture
def nothing_loaded(client: ollama.Client) -> None:
    for model in client.ps().models:
        client.generate(model.name, keep_alive=0)


def loaded(client: ollama.Client) -> list[str | None]:
    return [each.name for each in client.ps().models]


def stays_s(client: ollama.Client) -> float:
    """How long the one loaded model will stay."""
    (model,) = client.ps().models
    assert model.expires_at is not None
    return (model.expires_at - datetime.now(UTC)).total_seconds()


def post(server: Server, path: str, body: object) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    try:
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@pytest.mark.usefixtures("nothing_loaded")
def test_a_load_takes_its_time(client: ollama.Client) -> None:
    """08 API-5, API-6: told to the request that waited for it, and to no other."""
    first = client.generate(MODEL)
    assert loaded(client) == ["scripted:latest"]
    second = client.chat(MODEL)
    assert first.total_duration is not None
    assert first.load_duration is not None
    assert first.total_duration >= first.load_duration > 10_000_000
    assert second.load_duration == 0


@pytest.mark.parametrize("fields", [{}, {"prompt": ""}, {"prompt": None}, {"system": "be brief"}])
def test_no_prompt_loads(server: Server, fields: dict[str, object]) -> None:
    """08 API-6, E15: and answers nothing."""
    status, answer = post(server, "/api/generate", {"model": MODEL, **fields})
    assert (status, answer["done"], answer["done_reason"]) == (200, True, "load")
    assert (answer["model"], answer["response"]) == (MODEL, "")


@pytest.mark.parametrize("fields", [{}, {"messages": []}, {"messages": None}])
def test_no_messages_load(server: Server, fields: dict[str, object]) -> None:
    """08 API-7, E15."""
    status, answer = post(server, "/api/chat", {"model": MODEL, **fields})
    assert (status, answer["done"], answer["done_reason"]) == (200, True, "load")
    assert answer["message"] == {"role": "assistant", "content": ""}


def test_an_unload(client: ollama.Client) -> None:
    """08 API-6, E09: also of a model that is not loaded, and by either door."""
    client.generate(MODEL)
    unload = client.generate(MODEL, keep_alive=0)
    assert (unload.done, unload.done_reason, unload.response) == (True, "unload", "")
    assert loaded(client) == []
    for keep_alive in (0, "0", "0s"):
        assert client.generate(MODEL, keep_alive=keep_alive).done_reason == "unload"
        assert client.chat(MODEL, [], keep_alive=keep_alive).done_reason == "unload"
    assert client.embed(MODEL, "", keep_alive=0).embeddings == []
    assert loaded(client) == []


@pytest.mark.parametrize("keep_alive", [None, 0])
def test_an_unknown_model_is_neither_loaded_nor_unloaded(
    client: ollama.Client, keep_alive: float | None
) -> None:
    """08 API-14: 404, with a hint to pull it."""
    for ask in (client.generate, client.chat):
        with pytest.raises(ollama.ResponseError, match=r"not found.*pull") as caught:
            ask("nope", keep_alive=keep_alive)
        assert caught.value.status_code == 404


@pytest.mark.parametrize(
    ("keep_alive", "least", "most"),
    [
        (3600, 3500, 3600),
        ("24h", 86_000, 86_400),
        ("10m", 590, 600),
        (-1, NEVER, None),
        ("-1m", NEVER, None),
        (1e15, NEVER, None),
    ],
)
def test_how_long_a_model_stays(
    client: ollama.Client, keep_alive: float | str | None, least: float, most: float | None
) -> None:
    """08 SCH-4, E09: the same words at every door; dates that the client reads."""
    for ask in (
        lambda: client.generate(MODEL, keep_alive=keep_alive),
        lambda: client.generate(MODEL, "SAY:hello", keep_alive=keep_alive),
        lambda: client.chat(MODEL, [{"role": "user", "content": "hi"}], keep_alive=keep_alive),
        lambda: client.embed(MODEL, "hi", keep_alive=keep_alive),
    ):
        ask()
        assert least <= stays_s(client) <= (most or 1e11)


@pytest.mark.usefixtures("nothing_loaded")
def test_saying_nothing_changes_nothing(client: ollama.Client) -> None:
    """E09: a new model stays for the default, and a pinned one stays pinned."""
    client.generate(MODEL, "SAY:hello")
    assert 290 <= stays_s(client) <= 300
    client.generate(MODEL, keep_alive=-1)
    client.generate(MODEL, "SAY:hello")
    assert stays_s(client) > NEVER


def test_a_model_may_leave_with_its_answer(client: ollama.Client) -> None:
    """08 SCH-4: keep_alive 0 with something to do answers first."""
    assert client.generate(MODEL, "SAY:hello", keep_alive=0).response == "hello"
    while loaded(client):  # the answer may be read before its lease is over
        pass
    assert len(client.embed(MODEL, "hello", keep_alive=0).embeddings) == 1
    while loaded(client):
        pass


@pytest.mark.usefixtures("nothing_loaded")
@pytest.mark.parametrize("keep_alive", ["abc", "1 fortnight", "", True])
def test_a_strange_keep_alive_loads_nothing(
    client: ollama.Client, server: Server, keep_alive: object
) -> None:
    """E09: 400 and its name."""
    for path in ("/api/generate", "/api/chat", "/api/embed", "/api/embeddings"):
        status, answer = post(server, path, {"model": MODEL, "keep_alive": keep_alive})
        assert status == 400
        assert "keep_alive is" in str(answer["error"])
    assert loaded(client) == []


@pytest.mark.usefixtures("nothing_loaded")
def test_what_ps_tells(client: ollama.Client, settings: Settings) -> None:
    """08 API-1: full names, the manifest's digest, memory, context and details."""
    assert client.ps().models == []
    client.generate(OTHER, options={"num_ctx": 128})
    client.generate(MODEL)
    models = {each.name: each for each in client.ps().models}
    assert models.keys() == {"scripted:latest", "other:latest"}
    found = models["scripted:latest"]
    assert found.model == found.name
    assert found.digest == Store(settings.models).get(ModelName.parse(MODEL)).digest.hex
    assert found.context_length == CONTEXT
    assert found.size is not None
    assert found.size >= 4096
    assert found.size_vram == 0
    assert found.details is not None
    assert (found.details.family, found.details.format) == ("scripted", "safetensors")
    assert models["other:latest"].context_length == 128
