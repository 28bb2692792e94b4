"""What a client is told of a model that does not load: 08 API-14, OAI-6; in one line, as a status.

A 4xx where the model is to be mended: a client that tries again after a 5xx would load in vain.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from fixtures.remade import remade
from fixtures.scripted import ScriptedSettings, scripted_store
from fixtures.server import Server, scripted_server
from forerun.store import manifest as kinds
from forerun.store.names import ModelName
from forerun.store.store import Store

TURN = [{"role": "user", "content": "hi"}]
NATIVE = (
    ("/api/chat", {"messages": TURN}),
    ("/api/chat", {}),
    ("/api/generate", {"prompt": "x"}),
    ("/api/embed", {"input": "x"}),
)
V1 = (
    ("/v1/chat/completions", {"messages": TURN}),
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/responses", {"input": "x"}),
    ("/v1/embeddings", {"input": "x"}),
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ScriptedSettings:
    settings = scripted_store(tmp_path_factory.mktemp("failing"), names=("good",))
    store = Store(settings.models)
    remade(store, "good", "undrafted", layers={kinds.PARAMS: b'{"draft":"model"}'})
    remade(store, "good", "unfinished", without=("config.json",))
    remade(store, "good", "huge", config={"hidden_size": 2**50})
    remade(store, "good", "damaged", layers={kinds.SYSTEM: b"to be damaged"})
    (layer,) = store.get(ModelName.parse("damaged")).manifest.of_type(kinds.SYSTEM)
    path = store.get(ModelName.parse("damaged")).file(layer)
    path.chmod(0o600)
    path.write_bytes(b"was damaged..")
    return settings


@pytest.fixture(scope="module")
def server(settings: ScriptedSettings) -> Iterator[Server]:
    with scripted_server(settings) as server:
        yield server
        assert "Traceback" not in server.log


def post(server: Server, path: str, model: str, body: dict[str, Any]) -> tuple[int, Any]:
    data = json.dumps({"model": model, **body}).encode()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{server.url}{path}", data, timeout=60)
    with refused.value as error:
        return error.code, json.loads(error.read())["error"]


@pytest.mark.parametrize(
    ("model", "status", "reason"),
    [
        ("undrafted", 400, "undrafted:latest says PARAMETER draft model and has no draft"),
        ("damaged", 500, "is damaged"),
        ("huge", 500, "what helps is a smaller num_ctx"),
        ("absent", 404, "absent"),
    ],
)
def test_the_status_says_whose_fault_it_is(
    server: Server, model: str, status: int, reason: str
) -> None:
    """The same in both APIs, whether the load fails before there is a process or within it."""
    (native, native_body), (v1, v1_body) = NATIVE[0], V1[0]
    code, text = post(server, native, model, native_body)
    assert (code, text.count("\n")) == (status, 0)
    assert reason in text
    code, told = post(server, v1, model, v1_body)
    kind = {400: "invalid_request_error", 404: "not_found_error", 500: "api_error"}[status]
    assert (code, told["type"], told["message"]) == (status, kind, text)


@pytest.mark.parametrize("stream", [False, True])
def test_every_door_tells_it(server: Server, stream: bool) -> None:
    """Streamed or not, where the model is only to be loaded, and where it is only described."""
    for path, body in (*NATIVE, ("/api/show", {}), *V1):
        code, told = post(server, path, "unfinished", {**body, "stream": stream})
        text = told if path.startswith("/api") else told["message"]
        assert (code, text) == (
            400,
            "model 'unfinished:latest' has no config.json; create it again",
        ), path


def test_official_clients_do_not_try_again(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=2) as client:
        before = server.log.count("request failed")
        with pytest.raises(openai.BadRequestError, match="has no draft"):
            client.chat.completions.create(model="undrafted", messages=TURN)
    assert server.log.count("request failed") == before + 1


def test_the_others_are_served_as_before(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.completions.create(model="good", prompt="SAY:hello\n")
    assert answer.choices[0].text == "hello"
