"""Models made of uploaded files or of other models: /api/create (08 API-3, API-14)."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import ollama
import pytest
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file, save_file

from fixtures.server import Server, plain_server
from fixtures.tiny import tiny_folder
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.protocol.imports import CreateRequest
from forerun.settings import Settings
from forerun.store.blobs import Digest
from forerun.store.messages import Message
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel
from unit.importer.gguf_files import convert_folder

WEIGHTS = "model.safetensors"
ABSENT = f"sha256:{'0' * 64}"
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("source") / "tiny", "llama")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("create")


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    with plain_server(Settings.from_environment({"FORERUN_MODELS": str(root)})) as server:
        yield server


@pytest.fixture(scope="module")
def base(client: ollama.Client, folder: Path) -> str:
    """A model to start from, with defaults of its own."""
    client.create(
        "base",
        files=sent(client, folder),
        parameters={"temperature": 0.5, "top_k": 7},
        system="base system",
    )
    return "base"


@pytest.fixture
def stored(root: Path) -> Callable[[str], StoredModel]:
    return lambda name: Store(root).get(ModelName.parse(name))


def sent(client: ollama.Client, folder: Path) -> dict[str, str]:
    """The files of a folder, uploaded."""
    return {file.name: client.create_blob(file) for file in folder.iterdir()}


def test_files_make_the_model_that_their_folder_makes(
    client: ollama.Client, folder: Path, root: Path, tmp_path: Path
) -> None:
    """08 API-3, 07 MF-8: to the digest; the uploads are gone once they are used."""
    lines = list(client.create("made", files=sent(client, folder), stream=True))
    assert lines[-1].status == "success"
    counted = [line for line in lines if line.total]
    assert counted[-1].completed == counted[-1].total
    assert len({line.digest for line in counted}) == 1
    elsewhere = Store(tmp_path / "store")
    with open(os.devnull, "wb") as unheard:
        request = CreateRequest(name="made", modelfile="FROM .", folder=str(folder))
        digest = create(request, elsewhere, Reporter(unheard.fileno()))
    store = Store(root)
    assert store.digest(ModelName.parse("made")) == digest
    weights = Digest.of((folder / WEIGHTS).read_bytes())
    assert store.blobs.size(weights) is None
    answer = client.generate("made", "a", raw=True, options={"num_predict": 2})
    assert answer.eval_count == 2


@pytest.mark.parametrize("name", ["tiny.gguf", "whatever"])
def test_a_gguf_file_makes_a_model(
    client: ollama.Client, folder: Path, tmp_path: Path, name: str
) -> None:
    """08 API-3, 07 MF-8: whatever it is called; quantised weights count as what they stand for."""
    matrices = GGMLQuantizationType.Q4_0
    path = convert_folder(folder, tmp_path / "q4.gguf", "llama", matrices=matrices)
    answer = client.create("packed", files={name: client.create_blob(path)}, stream=False)
    assert answer.status == "success"
    details = client.show("packed").details
    assert details is not None
    assert (details.parameter_size, details.quantization_level) == ("107.8K", "int4")
    with pytest.raises(ollama.ResponseError, match=r"is int4 already; create it from the float"):
        client.create("packed2", from_="packed", quantize="q4", stream=False)


def test_files_in_folders_are_files_of_the_model(
    client: ollama.Client, folder: Path, stored: Callable[[str], StoredModel]
) -> None:
    """08 API-3: the model's own files lie at the top; others are no harm."""
    digest = client.create_blob(folder / "config.json")
    client.create("deep", files={**sent(client, folder), "1_Pooling/config.json": digest})
    assert stored("deep").json_layer("config.json") is not None


def test_everything_that_can_be_said_over_a_base(
    base: str, server: Server, stored: Callable[[str], StoredModel]
) -> None:
    """08 API-3, 07 MF-3, MF-8: also texts that no Modelfile can hold."""
    hard = 'line """\r\nend'
    told = {
        "model": "over",
        "from": base,
        "template": TEMPLATE,
        "system": hard,
        "license": ["first", hard],
        "parameters": {"temperature": 1, "stop": "END", "logit_bias": {"5": -3}, "seed": None},
        "messages": [{"role": "User", "content": hard}, {"role": "assistant", "content": None}],
        "renderer": "drawn",
        "parser": "qwen3",
        "requires": "0.19.1",
        "stream": False,
    }
    answer = httpx.post(f"{server.url}/api/create", json=told, timeout=60)
    assert (answer.status_code, answer.json()) == (200, {"status": "success"})
    model = stored("over")
    assert (model.template, model.system, model.licenses) == (TEMPLATE, hard, ("first", hard))
    assert model.parameters == {
        **{"temperature": 1.0, "top_k": 7, "stop": ["END"], "logit_bias": {5: -3.0}},
    }
    assert model.messages == (Message("user", hard), Message("assistant", ""))
    config = model.config
    assert (config.renderer, config.parser, config.requires) == ("drawn", "qwen3", "0.19.1")
    assert model.tensors == stored(base).tensors


def test_nothing_said_keeps_the_base(
    server: Server, base: str, stored: Callable[[str], StoredModel]
) -> None:
    """08 API-3, E13: null and "" are the same as absent."""
    absent = {"files": {}, "parameters": {}, "messages": [], "license": ["", ""], "adapters": {}}
    texts = ["quantize", "draft_quantize", "quantize_draft", "template", "system", "renderer"]
    texts += ["parser", "requires"]
    empty = dict.fromkeys(texts, "")
    for number, said in enumerate([absent | empty, dict.fromkeys([*absent, *empty, "stream"])]):
        name = f"same{number}"
        body = {"model": None, "name": name, "from": base, **said}
        answer = httpx.post(f"{server.url}/api/create", json=body, timeout=60)
        last = json.loads(answer.content.splitlines()[-1])
        assert (answer.headers["content-type"], last) == (
            *("application/x-ndjson", {"status": "success"}),
        )
        assert stored(name).manifest == stored(base).manifest


def test_what_has_no_effect_is_said(client: ollama.Client, server: Server, base: str) -> None:
    """07 MF-2, MF-3: adapters and retired parameters are accepted."""
    body = {
        **{"model": "noted", "from": base},
        **{"adapters": {"a": ABSENT}, "parameters": {"mirostat": 2, "low_vram": True}},
    }
    answer = httpx.post(f"{server.url}/api/create", json=body, timeout=60)
    said = [json.loads(line)["status"] for line in answer.content.splitlines()]
    assert said == [
        *("parameter low_vram has no effect", "parameter mirostat has no effect"),
        *("adapters have no effect", "success"),
    ]
    shown = client.show("noted").parameters
    assert shown is not None
    assert "mirostat" not in shown


MODEL = {"config.json": ABSENT, WEIGHTS: ABSENT}


@pytest.mark.parametrize(
    ("said", "status", "named"),
    [
        ({}, 400, "`from`"),
        ({"from": "base", "files": MODEL}, 400, "not both"),
        ({"files": MODEL}, 400, ABSENT),
        ({"files": {"config.json": "sha256:12", WEIGHTS: ABSENT}}, 400, "sha256:12"),
        ({"files": {"config.json": ABSENT}}, 400, ABSENT),
        ({"files": {"a.json": ABSENT, "b.json": ABSENT}}, 400, "no model"),
        ({"files": {"a.gguf": ABSENT, "b.gguf": ABSENT}}, 400, "more than one"),
        ({"files": {"a.gguf": ABSENT, **MODEL}}, 400, "more than one"),
        ({"files": {**MODEL, "a": ABSENT, "a/b": ABSENT}}, 400, "'a/b'"),
        *[
            ({"files": {**MODEL, bad: ABSENT}}, 400, "inside the model's folder")
            for bad in (
                *("../x", "/etc/x", "a/../../x", "a\\x", "a\0x", "C:x", "", ".", "a//b", "a/"),
                *("n" * 300, "/".join("abcdefghij")),
            )
        ],
        ({"from": "absent"}, 404, "absent:latest"),
        ({"from": "a b"}, 400, "'a b'"),
        ({"from": "example.com/a/b"}, 501, "example.com"),
        ({"from": "."}, 400, "file or folder"),
        ({"from": "base", "parameters": {"temperature": "hot"}}, 400, "temperature is 'hot'"),
        ({"from": "base", "parameters": {"top_p": 7}}, 400, "from 0 to 1"),
        ({"from": "base", "parameters": {"tempreature": 1}}, 400, "'tempreature'"),
        ({"from": "base", "template": "{{ .Prompt }}"}, 400, "Jinja"),
        ({"from": "base", "template": "{% for %}"}, 400, "template"),
        ({"from": "base", "messages": [{"role": "tool", "content": "x"}]}, 400, "'tool'"),
        ({"from": "base", "messages": [{"content": "x"}]}, 400, "role"),
        ({"from": "base", "requires": "99.0.0"}, 400, "99.0.0"),
        ({"from": "base", "parser": "unheard"}, 400, "unheard"),
        ({"from": "base", "quantize": "q5_K_M"}, 400, "int4, int8, nvfp4, mxfp4, mxfp8; q4_0"),
        ({"from": "base", "quantize": "F16"}, 400, "quantize is 'F16'"),
        ({"from": "base", "draft_files": MODEL, "draft_quantize": "q6"}, 400, "draft_quantize"),
        ({"from": "base", "draft_files": MODEL}, 400, ABSENT),
        ({"from": "base", "draft_files": {"config.json": ABSENT}}, 400, "no draft model"),
        ({"from": "base", "draft_files": {"../config.json": ABSENT}}, 400, "draft_files names"),
        ({"from": "base", "draft_quantize": "int4"}, 400, "no draft_files"),
        ({"from": "base", "quantize_draft": "q8_0"}, 400, "int8, and there are no draft_files"),
        ({"from": "base", "model": "../x"}, 400, "'../x'"),
        ({"from": "base", "model": ""}, 400, "model is missing"),
        ({"from": "base", "model": "hf.co/a/b"}, 400, "without a host"),
        ({"from": "base", "license": 5}, 400, "license"),
    ],
)
def test_a_mistake_is_refused_before_the_stream(
    server: Server, base: str, root: Path, said: dict[str, Any], status: int, named: str
) -> None:
    """08 API-3, API-14, 07 CFG-3: the line names it, no model is made, no file is touched."""
    del base
    before = sorted(entry.name for entry in Store(root).entries())
    body = {"model": "wrong", **said}
    answer = httpx.post(f"{server.url}/api/create", json=body, timeout=60)
    assert (answer.status_code, named in answer.json()["error"]) == (status, True), answer.json()
    assert sorted(entry.name for entry in Store(root).entries()) == before


def test_from_is_never_a_path_of_the_server(server: Server, folder: Path) -> None:
    """07 CFG-3: a model folder of the server's disk is none of the client's business."""
    body = {"model": "stolen", "from": str(folder)}
    answer = httpx.post(f"{server.url}/api/create", json=body)
    assert answer.status_code == 400


@pytest.fixture
def broken(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "broken"))


def test_a_failed_create_leaves_the_old_model(
    client: ollama.Client, base: str, broken: Path, stored: Callable[[str], StoredModel]
) -> None:
    """07 CFG-6, 08 API-14: the error has its status and calls files as the client does."""
    client.create("kept", from_=base)
    before = stored("kept").digest
    weights = broken / WEIGHTS
    os.truncate(weights, weights.stat().st_size - 100)
    with pytest.raises(ollama.ResponseError) as raised:
        for _ in client.create("kept", files=sent(client, broken), stream=True):
            pass
    assert raised.value.status_code == 400
    assert raised.value.error.startswith(f"{WEIGHTS} is truncated")
    assert stored("kept").digest == before


def test_an_error_after_the_stream_began_is_its_last_line(
    client: ollama.Client, server: Server, broken: Path, root: Path
) -> None:
    """08 API-14: and without a stream it has a status; what was sent stays for the next try."""
    tensors = load_file(broken / WEIGHTS)
    name = max(tensors)
    tensors[name] = np.full_like(tensors[name], np.nan)
    save_file(tensors, broken / WEIGHTS)
    files = sent(client, broken)
    body = {"model": "never", "files": files}
    answer = httpx.post(f"{server.url}/api/create", json=body, timeout=60)
    *before, last = [json.loads(line) for line in answer.content.splitlines()]
    assert answer.status_code == 200
    assert before[-1]["status"] == "converting tensors"
    assert f"{name} holds values that are no finite numbers" in last["error"]
    with pytest.raises(ollama.ResponseError, match="no finite numbers") as raised:
        client.create("never", files=files)
    assert raised.value.status_code == 500
    assert not Store(root).exists(ModelName.parse("never"))
