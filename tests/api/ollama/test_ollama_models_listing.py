"""What models are there and what they are: /api/tags and /api/show (08 API-1, API-2, API-14)."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import ollama
import pytest

from fixtures.server import Server, plain_server
from fixtures.tiny import CHAT_TEMPLATE, tiny_folder, tiny_store
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.protocol.imports import CreateRequest
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store

TOLD = '''FROM .
SYSTEM You are brief.
LICENSE first licence
LICENSE second licence
PARAMETER temperature 0.25
PARAMETER num_ctx 256
PARAMETER stop "a \\ b"
PARAMETER stop """end
"""
MESSAGE user Hi
PARSER qwen3
RENDERER drawn
REQUIRES 0.19.1
'''


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two models that are whole and two that are not, in this order in time."""
    root = tmp_path_factory.mktemp("listing")
    store = tiny_store(root / "store", "qwen3", name="plain")
    tiny_store(root / "store", name="cut", seed=7)
    folder = tiny_folder(root / "folder", "llama")
    with open(os.devnull, "wb") as unheard:
        request = CreateRequest(name="team/told:v1", modelfile=TOLD, folder=str(folder))
        create(request, store, Reporter(unheard.fileno()))
    cut = store.get(ModelName.parse("cut"))
    os.truncate(cut.file(cut.tensors[0]), 5)
    for age, name in enumerate(["garbled", "team/told:v1", "plain", "cut"]):
        path = ModelName.parse(name).path(store.folders.manifests)
        if name == "garbled":
            path.parent.mkdir(parents=True)
            path.write_bytes(b'{"schemaVersion": 2}')
        os.utime(path, (0, 1_800_000_000 - age))
    return store


@pytest.fixture(scope="module")
def server(store: Store) -> Iterator[Server]:
    root = str(store.folders.root)
    with plain_server(Settings.from_environment({"FORERUN_MODELS": root})) as server:
        yield server


def test_whole_models_are_listed_newest_first(
    server: Server, client: ollama.Client, store: Store
) -> None:
    """08 API-1: damaged models are left out, and the log says why."""
    listed = client.list().models
    assert [each.model for each in listed] == ["team/told:v1", "plain:latest"]
    plain = listed[1]
    stored = store.get(ModelName.parse("plain"))
    assert plain.digest == stored.digest.hex
    assert plain.size == stored.manifest.size
    assert plain.modified_at == datetime.fromtimestamp(1_800_000_000 - 2, UTC)
    assert plain.details is not None
    assert (plain.details.family, plain.details.format) == ("qwen3", "safetensors")
    assert (plain.details.parameter_size, plain.details.quantization_level) == ("107.9K", "f32")
    assert "cut:latest is left out of the list: " in server.log
    assert "garbled:latest is left out of the list: " in server.log


def test_the_list_has_every_field_on_the_wire(server: Server) -> None:
    """08 API-1: times with an offset, bare digests, and HEAD as GET."""
    url = f"{server.url}/api/tags"
    first = httpx.get(url).json()["models"][0]
    assert set(first) == {
        *("name", "model", "modified_at", "size", "digest", "details", "capabilities"),
    }
    assert first["name"] == first["model"] == "team/told:v1"
    assert first["modified_at"] == "2027-01-15T07:59:59Z"
    assert first["capabilities"][0] == "completion"
    head = httpx.head(url)
    assert (head.status_code, head.content) == (200, b"")


def test_show_tells_what_a_modelfile_said(client: ollama.Client) -> None:
    """08 API-2: the texts, and parameters as Ollama lays them out."""
    shown = client.show("team/told:v1")
    assert shown.license == "first licence\nsecond licence"
    assert shown.template == CHAT_TEMPLATE
    assert shown.parameters == "\n".join(
        [
            "temperature                    0.25",
            "num_ctx                        256",
            r'stop                           "a \\ b"',
            r'stop                           "end\n"',
        ]
    )
    assert shown.modelfile is not None
    assert shown.modelfile.startswith("FROM team/told:v1\nSYSTEM You are brief.\n")
    assert shown.modified_at == datetime.fromtimestamp(1_800_000_000 - 1, UTC)
    assert shown.capabilities is not None
    assert shown.capabilities[0] == "completion"


def test_show_tells_sizes_under_the_names_of_gguf(client: ollama.Client) -> None:
    """08 API-2: model_info."""
    info = client.show("plain").modelinfo
    assert info is not None
    assert dict(info) == {
        "general.architecture": "qwen3",
        "general.parameter_count": 107_936,
        "qwen3.context_length": 512,
        "qwen3.embedding_length": 64,
        "qwen3.block_count": 2,
        "qwen3.feed_forward_length": 96,
        "qwen3.attention.head_count": 4,
        "qwen3.attention.head_count_kv": 2,
        "qwen3.attention.key_length": 24,
        "qwen3.attention.value_length": 24,
        "qwen3.vocab_size": 264,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.eos_token_id": 258,
        "tokenizer.ggml.eos_token_ids": [258],
    }


def test_show_on_the_wire(server: Server) -> None:
    """08 API-2: `name` serves as `model` and null as absent (E13); texts that are absent are ""."""
    url = f"{server.url}/api/show"
    told = httpx.post(url, json={"name": "team/told:v1", "model": None, "verbose": None}).json()
    assert (told["system"], told["parser"], told["renderer"]) == (
        "You are brief.",
        "qwen3",
        "drawn",
    )
    assert told["requires"] == "0.19.1"
    assert told["details"]["context_length"] == 512
    assert "tensors" not in told
    plain = httpx.post(url, json={"model": "plain", "verbose": True}).json()
    assert {"name": "model.norm.weight", "type": "f32", "shape": [64]} in plain["tensors"]
    assert len(plain["tensors"]) == 2 + 2 * 11 + 1
    assert "system" not in plain
    for body in ({}, {"model": ""}, {"model": None, "name": None}):
        nameless = httpx.post(url, json=body)
        assert nameless.status_code == 400
        assert "model is missing" in nameless.json()["error"]


@pytest.mark.parametrize(
    ("model", "status", "named"),
    [
        ("absent", 404, "model 'absent:latest' not found"),
        ("a b", 400, "'a b'"),
        ("../plain", 400, "'../plain'"),
        ("a/b/c/d", 400, "too many parts"),
        ("cut", 500, "5 bytes"),
        ("garbled", 500, "garbled"),
    ],
)
def test_what_cannot_be_shown_says_so(
    client: ollama.Client, model: str, status: int, named: str
) -> None:
    """08 API-14."""
    with pytest.raises(ollama.ResponseError) as raised:
        client.show(model)
    assert raised.value.status_code == status
    assert named in raised.value.error
