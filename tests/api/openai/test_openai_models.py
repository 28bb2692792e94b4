"""/v1/models and /v1/embeddings through the official client and a real server (OAI-1, OAI-8)."""

import math
import os
from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from struct import unpack

import httpx
import openai
import pytest
from openai import OpenAI

from fixtures.scripted import scripted_store
from fixtures.server import Server, scripted_server
from forerun.settings import Settings
from forerun.store.names import ModelName

MODEL = "scripted"
OTHER = "team/other.model:v1"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The newest model is the one whose name comes first."""
    settings = scripted_store(tmp_path_factory.mktemp("models"), names=[MODEL, OTHER, "bad"])
    for place, name in enumerate(("bad", OTHER, MODEL)):
        os.utime(manifest(settings, name), (1000 + place, 1000 + place))
    return settings


def manifest(settings: Settings, name: str) -> Path:
    return ModelName.parse(name).path(settings.models / "manifests")


@pytest.fixture(scope="module")
def server(settings: Settings) -> Iterator[Server]:
    with scripted_server(settings) as server:
        yield server


def test_models_newest_first(client: OpenAI) -> None:
    """OAI-1"""
    models = client.models.list().data
    assert [model.id for model in models] == ["scripted:latest", OTHER, "bad:latest"]
    assert [model.created for model in models] == [1002, 1001, 1000]
    assert [model.owned_by for model in models] == ["library", "team", "library"]
    assert {model.object for model in models} == {"model"}


@pytest.mark.parametrize("name", ["scripted", "scripted:latest", OTHER])
def test_one_model(client: OpenAI, server: Server, name: str) -> None:
    """OAI-1: by any name it has, slashes and colons included."""
    model = client.models.retrieve(name)
    assert model.id == str(ModelName.parse(name))
    plain = httpx.get(f"{server.url}/v1/models/{name}", timeout=60)
    assert plain.json() == model.model_dump(exclude_unset=True)


def test_a_model_that_is_not_there(client: OpenAI) -> None:
    """OAI-6"""
    with pytest.raises(openai.NotFoundError, match="'gpt-9:latest' not found") as raised:
        client.models.retrieve("gpt-9")
    assert (raised.value.type, raised.value.code) == ("not_found_error", "model_not_found")
    with pytest.raises(openai.BadRequestError, match="cannot be the model"):
        client.models.retrieve("no such name")


def test_a_damaged_model_is_not_offered(client: OpenAI, settings: Settings) -> None:
    """OAI-1, OAI-6"""
    path = manifest(settings, "bad")
    intact = path.read_bytes()
    path.write_text("{")
    try:
        assert "bad:latest" not in [model.id for model in client.models.list().data]
        with pytest.raises(openai.InternalServerError, match="bad"):
            client.models.retrieve("bad")
    finally:
        path.write_bytes(intact)


def test_a_path_that_is_not_offered(server: Server) -> None:
    """OAI-6: in OpenAI's words."""
    answer = httpx.post(f"{server.url}/v1/fine_tuning/jobs", json={}, timeout=60)
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]


def test_embeddings_are_the_same_in_every_form(client: OpenAI, server: Server) -> None:
    """OAI-8: the client asks for base64 unless told otherwise."""
    asked = {"model": MODEL, "input": ["alpha", "beta"]}
    answer = client.embeddings.create(**asked)
    assert (answer.object, answer.model) == ("list", MODEL)
    assert [(each.object, each.index) for each in answer.data] == [
        ("embedding", 0),
        ("embedding", 1),
    ]
    vectors = [each.embedding for each in answer.data]
    floats = client.embeddings.create(**asked, encoding_format="float")
    raw = httpx.post(
        f"{server.url}/v1/embeddings", json={**asked, "encoding_format": "base64"}, timeout=60
    )
    assert vectors[0] != vectors[1]
    for place, vector in enumerate(vectors):
        assert math.isclose(sum(value * value for value in vector), 1, rel_tol=1e-5)
        assert floats.data[place].embedding == pytest.approx(vector, abs=1e-6)
        packed = b64decode(raw.json()["data"][place]["embedding"])
        assert list(unpack(f"<{len(vector)}f", packed)) == pytest.approx(vector, abs=1e-6)
    plain = httpx.post(f"{server.url}/v1/embeddings", json=asked, timeout=60).json()
    assert isinstance(plain["data"][0]["embedding"], list)


def test_usage_of_embeddings(client: OpenAI) -> None:
    """OAI-8: the tokens of all texts; a text alone is a list of one."""
    many = client.embeddings.create(model=MODEL, input=["alpha", "beta"]).usage
    one = client.embeddings.create(model=MODEL, input="alpha").usage
    assert many.prompt_tokens == many.total_tokens
    assert many.prompt_tokens - one.prompt_tokens == len("beta")


def test_fewer_dimensions(client: OpenAI) -> None:
    """OAI-8"""
    vector = client.embeddings.create(model=MODEL, input="alpha", dimensions=300).data[0].embedding
    assert len(vector) == 300
    assert math.isclose(sum(value * value for value in vector), 1, rel_tol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": None}, "input is None"),
        ({"input": []}, "input is"),
        ({"input": [1, 2]}, "token ids are not taken"),
        ({"input": [[1, 2]]}, "token ids are not taken"),
        ({"input": ["a", 1]}, "input is"),
        ({"input": {"text": "a"}}, "input is"),
        ({"input": ""}, "empty"),
        ({"input": "x" * 9000}, r"9\d\d\d tokens and the context is 8192"),
        ({"dimensions": 0}, "dimensions is 0"),
        ({"dimensions": "9"}, r"\$.dimensions"),
        ({"encoding_format": "hex"}, "encoding_format is 'hex'; it must be float or base64"),
        ({"keep_alive": "abc"}, "keep_alive is 'abc'"),
        ({"model": 1}, r"\$.model"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(
    client: OpenAI, fields: dict[str, object], message: str
) -> None:
    """OAI-6, OAI-8, E09"""
    with pytest.raises(openai.BadRequestError, match=message) as raised:
        client.embeddings.create(model=MODEL, input="a", extra_body=fields)
    assert raised.value.type == "invalid_request_error"


def test_embeddings_of_an_unknown_model(client: OpenAI) -> None:
    """OAI-6"""
    with pytest.raises(openai.NotFoundError) as raised:
        client.embeddings.create(model="gpt-9", input="a")
    assert raised.value.code == "model_not_found"


def test_null_is_the_same_as_absent(client: OpenAI) -> None:
    """E13"""
    for names in (["dimensions"], ["user"], ["keep_alive"], ["dimensions", "user", "keep_alive"]):
        answer = client.embeddings.create(
            model=MODEL, input="a", extra_body=dict.fromkeys([*names, "encoding_format"])
        )
        assert len(answer.data) == 1


ASKS: dict[str, dict[str, object]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "SAY:x"}]},
    "completions": {"prompt": "SAY:x<|im_end|>"},
    "embeddings": {"input": "x"},
}


def ask(server: Server, path: str, **fields: object) -> None:
    body = {"model": MODEL, **ASKS[path], **fields}
    assert httpx.post(f"{server.url}/v1/{path}", json=body, timeout=60).status_code == 200


def stays_s(server: Server) -> float | None:
    """How long the model will stay, None if it is not loaded."""
    for model in httpx.get(f"{server.url}/api/ps", timeout=60).json()["models"]:
        if model["name"] == "scripted:latest":
            return (datetime.fromisoformat(model["expires_at"]) - datetime.now(UTC)).total_seconds()
    return None


def test_how_long_a_model_stays(server: Server) -> None:
    """E09, SCH-4: as at the native doors; a request that says nothing changes nothing."""
    table = {3600: 3600, "24h": 86_400, "600": 600, -1: math.inf, "-1m": math.inf, "10m": 600}
    for path in ASKS:
        for keep_alive, seconds in table.items():
            for fields in ({"keep_alive": keep_alive}, {}):
                ask(server, path, **fields)
                left = stays_s(server)
                assert left is not None
                assert left > 1e9 if seconds == math.inf else seconds - 60 < left <= seconds
        ask(server, path, keep_alive=0)
        while stays_s(server) is not None:  # the answer may be read before its lease is over
            pass
