"""Creating models from Modelfiles: folders, GGUF files and existing models (07 MF-8)."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from torch import Tensor

from fixtures.checkpoints import edit_tensors
from fixtures.eagle3 import TinyHead
from fixtures.tiny import tiny_folder
from forerun.base.errors import RequestError
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.protocol.imports import CreateRequest
from forerun.store import manifest as kinds
from forerun.store.blobs import Digest
from forerun.store.manifest import Origin
from forerun.store.messages import Message
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel
from unit.importer.conftest import Create, Refuse
from unit.importer.gguf_files import convert_folder

Q8_0 = GGMLQuantizationType.Q8_0
NORM = "model.layers.1.post_attention_layernorm.weight"


def stored_tensors(model: StoredModel) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for layer in model.tensors:
        tensors |= load_file(model.file(layer))
    return tensors


def test_a_folder_is_imported_unchanged(folder: Path, create_model: Create) -> None:
    """PLN-1, PLN-6, CFG-1, CFG-2: a blob a tensor, sorted, named by it; every value as it was."""
    model = create_model("FROM ./tiny")
    original = load_file(folder / "model.safetensors")
    assert [layer.name for layer in model.tensors] == sorted(original)
    for layer in model.tensors:
        (name, tensor), *rest = load_file(model.file(layer)).items()
        assert (name, rest) == (layer.name, [])
        assert tensor.dtype == original[name].dtype
        assert torch.equal(tensor.view(torch.int16), original[name].view(torch.int16))
    files = {layer.name: model.read(layer) for layer in model.manifest.of_type(kinds.JSON)}
    assert files == {file.name: file.read_bytes() for file in folder.glob("*.json")}
    assert model.config.file_type == "bf16"
    assert model.config.capabilities == ("completion",)


def test_shards_are_imported_without_their_index(tmp_path: Path, create_model: Create) -> None:
    """CFG-1: the index says nothing about the model."""
    folder = tiny_folder(tmp_path / "tiny", "qwen3", shard_size="60KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    model = create_model("FROM tiny")
    original: dict[str, Tensor] = {}
    for file in folder.glob("*.safetensors"):
        original |= load_file(file)
    found = stored_tensors(model)
    assert found.keys() == original.keys()
    assert all(torch.equal(found[name], original[name]) for name in original)
    assert model.json_layer("model.safetensors.index.json") is None


def test_a_gguf_file_is_imported(folder: Path, tmp_path: Path, create_model: Create) -> None:
    """MF-8, GUF-7, GUF-8: config, tokenizer and both kinds of EOS come with it."""
    edit_tensors(folder, lambda tensors: {n: t.float() for n, t in tensors.items()})
    convert_folder(folder, tmp_path / "a.gguf", "llama")
    model = create_model("FROM a.gguf")
    assert model.json("config.json")["architectures"] == ["LlamaForCausalLM"]
    assert model.json("generation_config.json")["eos_token_id"] == [258, 256]
    assert model.json_layer("tokenizer.json") is not None
    assert model.config.file_type == "f32"


def test_a_gguf_file_brings_its_templates_and_special_tokens(
    folder: Path, tmp_path: Path, create_model: Create
) -> None:
    """GUF-8, TOK-4, 06 TMP-5: by name in tokenizer_config.json, by id in generation_config.json."""
    edit_tensors(folder, lambda tensors: {n: t.float() for n, t in tensors.items()})
    stated = {
        "tokenizer.chat_template": "main",
        "tokenizer.chat_templates": ["default", "tool_use"],
        "tokenizer.chat_template.tool_use": "tools",
        "tokenizer.ggml.bos_token_id": 257,
        "tokenizer.ggml.padding_token_id": 256,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.eot_token_id": 258,
    }
    convert_folder(folder, tmp_path / "a.gguf", "llama", extra=stated)
    model = create_model("FROM a.gguf")
    ids = {"bos_token_id": 257, "eos_token_id": 258, "pad_token_id": 256}
    assert model.json("generation_config.json") == ids
    config = model.json("tokenizer_config.json")
    names = {name: config[name] for name in ("bos_token", "eos_token", "pad_token")}
    assert list(names.values()) == ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    assert (config["add_bos_token"], config["add_eos_token"]) == (True, False)
    assert config["chat_template"] == [
        {"name": "default", "template": "main"},
        {"name": "tool_use", "template": "tools"},
    ]


@pytest.mark.usefixtures("folder")
def test_the_modelfile_becomes_layers(create_model: Create) -> None:
    """MF-3, MF-8: parameters, template, system, messages and licences."""
    model = create_model(
        "FROM tiny\n"
        "PARAMETER temperature 0.5\nPARAMETER stop a\nPARAMETER stop b\n"
        'TEMPLATE """{{ messages[0].content }}"""\nSYSTEM Be brief.\n'
        "MESSAGE user hi\nMESSAGE assistant hello\nLICENSE one\nLICENSE two\n"
    )
    assert model.parameters == {"temperature": 0.5, "stop": ["a", "b"]}
    assert model.template == "{{ messages[0].content }}"
    assert model.system == "Be brief."
    assert model.messages == (Message("user", "hi"), Message("assistant", "hello"))
    assert model.licenses == ("one", "two")


def test_a_template_file_is_kept_unless_the_modelfile_has_one(
    folder: Path, create_model: Create
) -> None:
    """06 TMP-5: chat_template.jinja comes after TEMPLATE and before tokenizer_config."""
    (folder / "chat_template.jinja").write_text("from the file")
    assert create_model("FROM tiny").template == "from the file"
    assert create_model("FROM tiny\nTEMPLATE mine").template == "mine"
    assert create_model('FROM tiny\nTEMPLATE ""').template == "from the file"


@pytest.mark.usefixtures("folder")
def test_an_existing_model_is_reused_with_settings_on_top(create_model: Create) -> None:
    """MF-8, 07 T10: the same blobs; parameters add up, other settings replace the base's."""
    base = create_model(
        "FROM tiny\nPARAMETER top_k 7\nPARAMETER seed 1\nSYSTEM old\nLICENSE x", "base"
    )
    model = create_model("FROM base\nPARAMETER seed 2\nSYSTEM new\nMESSAGE user hi")
    assert model.tensors == base.tensors
    assert model.manifest.of_type(kinds.JSON) == base.manifest.of_type(kinds.JSON)
    assert model.parameters == {"top_k": 7, "seed": 2}
    assert (model.system, model.licenses) == ("new", ("x",))
    again = create_model("FROM made", "again")
    assert again.digest == model.digest


@pytest.mark.usefixtures("folder")
def test_a_draft_is_stored_under_its_prefix(tmp_path: Path, create_model: Create) -> None:
    """MF-4, CFG-1, CFG-4: files under draft/, tensors with draft., architecture from its config."""
    head = TinyHead(extra={"model_type": "other"})
    head.write(tmp_path / "head")
    model = create_model("FROM tiny\nDRAFT ./head")
    assert model.draft is not None
    assert model.draft.architecture == "Eagle3Speculator"
    assert model.json("draft/config.json")["model_type"] == "other"
    names = [layer.name for layer in model.tensors]
    assert names[-len(head.tensors()) :] == sorted(f"draft.{name}" for name in head.tensors())
    assert torch.equal(stored_tensors(model)["draft.fc.weight"], head.tensors()["fc.weight"])


@pytest.mark.usefixtures("folder")
def test_a_draft_goes_onto_an_existing_model_and_replaces_its_draft(
    tmp_path: Path, create_model: Create
) -> None:
    """MF-8, 07 T10: the base's digests are reused; there is one draft afterwards."""
    base = create_model("FROM tiny", "base")
    draft = tmp_path / "head"
    TinyHead().write(draft)
    first = create_model("FROM base\nDRAFT head", "first")
    assert first.tensors[: len(base.tensors)] == base.tensors
    other = TinyHead("original", own_embedding=True)
    other.write(draft)
    second = create_model("FROM first\nDRAFT head", "second")
    assert second.draft is not None
    assert second.draft.architecture == "LlamaForCausalLMEagle3"
    drafts = [layer.name for layer in second.tensors if layer.name.startswith("draft.")]
    assert drafts == sorted(f"draft.{name}" for name in other.tensors())


@pytest.mark.usefixtures("folder")
def test_a_draft_without_an_architecture_is_refused_before_any_work(
    tmp_path: Path, refuse: Refuse, store: Store
) -> None:
    """CFG-4."""
    TinyHead(extra={"architectures": ...}).write(tmp_path / "head")
    refuse("FROM tiny\nDRAFT head", "names no architecture")
    assert not store.folders.blobs.exists()


@pytest.mark.usefixtures("folder")
def test_a_name_on_a_hub_cannot_be_created(create_model: Create) -> None:
    with pytest.raises(RequestError, match="without a host"):
        create_model("FROM tiny", "hf.co/a/b")


@pytest.mark.usefixtures("folder")
def test_nothing_is_left_for_another_try_after_success(create_model: Create, store: Store) -> None:
    create_model("FROM tiny")
    assert list(store.folders.downloads.iterdir()) == []
    assert store.collect() == 0


@pytest.mark.usefixtures("folder")
def test_two_imports_of_one_source_at_once(
    store: Store, reporter: Reporter, tmp_path: Path
) -> None:
    """CAT-6: one waits for the other's tensors, both names are there and whole."""

    def run(name: str) -> Digest:
        request = CreateRequest(name=name, modelfile="FROM tiny", folder=str(tmp_path))
        return create(request, Store(store.folders.root), reporter)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, ["a", "b"])
    assert first == second
    assert store.damaged(ModelName.parse("a")) == ()
    assert len(store.entries()) == 2


@pytest.mark.usefixtures("folder")
def test_retired_parameters_are_reported(create_model: Create, events: Path) -> None:
    """MF-2, MF-3: warnings reach whoever asked."""
    create_model("FROM tiny\nPARAMETER mirostat 1\nADAPTER x")
    text = events.read_text()
    assert "mirostat has no effect" in text
    assert "ADAPTER has no effect" in text


@pytest.mark.parametrize("template", ["{% if %}", "{{", "{% for m in %}{% endfor %}"])
def test_a_template_that_does_not_compile_is_refused(
    folder: Path, create_model: Create, refuse: Refuse, template: str
) -> None:
    """06 TMP-5: wherever it stands, and before anything is written; 08 API-14: whose mistake."""
    refuse(f"FROM {folder}\nTEMPLATE {template}", "no valid Jinja")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    refuse(f"FROM {folder}", "no valid Jinja")
    assert create_model(f"FROM {folder}\nTEMPLATE mine").template == "mine"
    with pytest.raises(RequestError, match="no valid Jinja"):
        create_model(f"FROM made\nTEMPLATE {template}", "other")


def test_a_model_over_another_is_not_what_that_was_pulled_as(
    store: Store, folder: Path, create_model: Create
) -> None:
    """CAT-5: else a pull of the name would keep what somebody made of it."""
    base = create_model(f"FROM {folder}", "base")
    with store.importing() as writer:
        config = replace(base.config, origin=Origin("somewhere", "1"))
        writer.keep(base.manifest.blobs)
        writer.publish(base.name, config, base.manifest.layers)
    assert store.get(base.name).config.origin is not None
    assert create_model("FROM base\nSYSTEM x", "base").config.origin is None


def test_a_type_that_no_weight_takes_is_said_and_not_claimed(
    tmp_path: Path, store: Store, reporter: Reporter, events: Path
) -> None:
    """07 POL-4, CLS-5: rows of 48 and 96 are no whole groups of 64, and 96 are of 32."""
    tiny_folder(tmp_path / "odd", "llama", hidden_size=48)
    for kind in ("int4", "mxfp8"):
        request = CreateRequest(
            name=kind, modelfile="FROM odd", folder=str(tmp_path), quantize=kind
        )
        create(request, store, reporter)
    assert store.get(ModelName.parse("int4")).config.file_type == "f32"
    assert store.get(ModelName.parse("mxfp8")).config.file_type == "f32"  # which most of it is
    told = "no weight becomes int4: no row is of whole groups; stored are f32 "
    assert told in events.read_text()
    assert "no weight becomes mxfp8" not in events.read_text()


@pytest.mark.parametrize("kind", ["int4", "mxfp8"])
def test_a_type_that_a_cpu_is_slow_with_is_told_of(
    store: Store, reporter: Reporter, events: Path, tmp_path: Path, kind: str
) -> None:
    """MF-7: before somebody waits for its answers."""
    tiny_folder(tmp_path / "tiny", "llama", hidden_size=64, intermediate_size=128)
    request = CreateRequest(name="made", modelfile="FROM tiny", folder=str(tmp_path), quantize=kind)
    create(request, store, reporter)
    assert ("a CPU is slow with" in events.read_text()) is (kind == "mxfp8")
