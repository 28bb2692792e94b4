"""Quantising at a create through the official client (07 MF-6, MF-7, MF-8; 08 API-3)."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest
from gguf import GGMLQuantizationType

from fixtures.checkpoints import edit_config
from fixtures.eagle3 import TinyHead
from fixtures.server import Server, plain_server
from fixtures.tiny import tiny_folder
from forerun.settings import Settings
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel
from unit.importer.gguf_files import convert_folder

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"
EMBEDDING = "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("source") / "tiny", "llama")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quantise")


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[Server]:
    with plain_server(Settings.from_environment({"FORERUN_MODELS": str(root)})) as server:
        yield server


@pytest.fixture(scope="module")
def base(client: ollama.Client, folder: Path) -> str:
    client.create("base", files=sent(client, folder), system="Be brief.")
    return "base"


@pytest.fixture
def stored(root: Path) -> Callable[[str], StoredModel]:
    return lambda name: Store(root).get(ModelName.parse(name))


def sent(client: ollama.Client, folder: Path) -> dict[str, str]:
    """The files of a folder, uploaded."""
    return {file.name: client.create_blob(file) for file in folder.iterdir()}


def kinds_of(model: StoredModel) -> dict[str, str]:
    return {tensor.name: tensor.kind for tensor in model.target_tensors()}


@pytest.mark.parametrize(("asked", "kind"), [("q4_K_M", "int4"), ("Q8_0", "int8")])
def test_a_float_model_is_quantised_under_the_names_that_ollama_knows(
    client: ollama.Client, base: str, stored: Callable[[str], StoredModel], asked: str, kind: str
) -> None:
    """MF-7, MF-8: `ollama create -q`. What is not its weights is the base's, to the digest."""
    lines = list(client.create(kind, from_=base, quantize=asked, stream=True))
    assert lines[-1].status == "success"
    counted = [line for line in lines if line.total]
    assert {line.status for line in counted} == {"quantising tensors"}
    assert counted[-1].completed == counted[-1].total
    model = stored(kind)
    assert (kinds_of(model)[Q_PROJ], kinds_of(model)[EMBEDDING]) == (kind, "f32")
    assert model.system == "Be brief."
    kept = {layer for layer in stored(base).manifest.layers if layer.name != Q_PROJ}
    assert kept & set(model.manifest.layers)
    shown = client.show(kind).details
    assert shown is not None
    listed = {each.model: each.details for each in client.list().models}[f"{kind}:latest"]
    assert listed is not None
    assert shown.quantization_level == listed.quantization_level == kind
    assert client.generate(kind, "a", raw=True, options={"num_predict": 2}).eval_count == 2


def test_a_quantised_model_is_not_quantised_again(client: ollama.Client, base: str) -> None:
    """07 CLS-4: to the same type neither; the line says what to start from."""
    client.create("once", from_=base, quantize="int8")
    for kind in ("int4", "int8"):
        with pytest.raises(ollama.ResponseError, match=r"is int8 already; create it") as raised:
            client.create("twice", from_="once", quantize=kind)
        assert raised.value.status_code == 400


@pytest.mark.parametrize("field", ["draft_quantize", "quantize_draft"])
def test_a_draft_is_uploaded_and_quantised(
    client: ollama.Client,
    server: Server,
    base: str,
    folder: Path,
    tmp_path: Path,
    stored: Callable[[str], StoredModel],
    field: str,
) -> None:
    """MF-4, MF-6, MF-8, 07 POL-7: the base's layers are reused unchanged; a draft's embedding takes
    the type directly."""
    draft = Path(shutil.copytree(folder, tmp_path / "draft"))
    edit_config(draft, rope_theta=20000.0)
    answer = client._client.post(  # the client has no argument for drafts
        f"{server.url}/api/create",
        json={
            **{"model": "drafted", "from": base, "draft_files": sent(client, draft)},
            **{field: "q8_0", "stream": False},
        },
        timeout=120,
    )
    assert answer.json() == {"status": "success"}
    model = stored("drafted")
    before = stored(base)
    assert model.manifest.layers[: len(before.manifest.layers)] == before.manifest.layers
    assert model.draft is not None
    assert model.draft.architecture == "LlamaForCausalLM"
    assert model.json("draft/config.json")["rope_theta"] == 20000.0
    layer = next(layer for layer in model.tensors if layer.name == f"draft.{EMBEDDING}")
    assert b'"quant_type":"int8"' in model.file(layer).read_bytes()[:400]
    told = shown(server, {"model": "drafted"})
    assert told["details"]["quantization_level"] == "f32"
    assert told["draft"] == {"architecture": "LlamaForCausalLM", "quantization_level": "int8"}
    listed = shown(server, {"model": "drafted", "verbose": True})["draft"]["tensors"]
    assert {"name": f"draft.{EMBEDDING}", "type": "int8", "shape": [264, 64]} in listed
    assert len(listed) == len(model.tensors) - len(before.tensors)
    assert "draft" not in shown(server, {"model": base, "verbose": True})


def shown(server: Server, body: dict[str, object]) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.post(f"{server.url}/api/show", json=body).json()
    return answer


def test_a_draft_for_another_model_is_a_mistake_of_the_request(
    client: ollama.Client, server: Server, base: str, tmp_path: Path
) -> None:
    """05 LOD-9, 03 EGL-9, 08 API-14."""
    TinyHead(vocabulary=300).write(tmp_path / "head")
    files = sent(client, tmp_path / "head")
    body = {"model": "pair", "from": base, "draft_files": files, "stream": False}
    answer = httpx.post(f"{server.url}/api/create", json=body, timeout=120)
    assert answer.status_code == 400
    assert answer.json()["error"] == (
        "the draft of pair:latest: the draft head is for a model with a vocabulary 300 tokens "
        "large; this one's is 264; give it a head that was trained for it"
    )


def test_what_a_file_keeps_as_it_was_quantised_is_said(
    client: ollama.Client, folder: Path, tmp_path: Path
) -> None:
    """06 GUF-2, 08 API-1, API-3: and the list says what the weights are."""
    path = convert_folder(folder, tmp_path / "a.gguf", "llama", matrices=GGMLQuantizationType.Q4_1)
    files = {path.name: client.create_blob(path)}
    lines = list(client.create("blocks", files=files, quantize="q8_0", stream=True))
    assert "tensors that are quantised already and keep their values: 16 (int4 16)" in [
        line.status for line in lines
    ]
    details = next(each.details for each in client.list().models if each.model == "blocks:latest")
    assert details is not None
    assert details.quantization_level == "int4"
