"""Creating models from Modelfiles: folders, GGUF files and existing models (07 MF-8)."""

import io
import json
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from torch import Tensor

from fixtures.checkpoints import edit_config, edit_tensors
from fixtures.tiny import tiny_folder
from forerun.base.errors import ForerunError, ImportFailedError, RequestError
from forerun.base.logs import ROOT
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.importer.sources import folder_source
from forerun.importer.write import write_tensors
from forerun.protocol.imports import CreateRequest
from forerun.store import manifest as kinds
from forerun.store.blobs import Digest
from forerun.store.messages import Message
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel
from unit.importer.conftest import Create
from unit.importer.gguf_files import convert_folder

Q8_0 = GGMLQuantizationType.Q8_0
NORM = "model.layers.1.post_attention_layernorm.weight"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("pristine"), "llama", dtype=torch.bfloat16)


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    """A folder named `tiny` beside the Modelfile, to change at will."""
    return Path(shutil.copytree(pristine, tmp_path / "tiny"))


def stored_tensors(model: StoredModel) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for layer in model.tensors:
        tensors |= load_file(model.file(layer))
    return tensors


def refuse(create_model: Create, modelfile: str, message: str, store: Store) -> None:
    """The request fails with that message and leaves no model (CFG-6)."""
    with pytest.raises(ForerunError, match=message):
        create_model(modelfile)
    assert store.entries() == []


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
    assert model.config.file_type == "BF16"
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
    assert model.config.file_type == "F32"


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


@pytest.mark.usefixtures("folder")
def test_an_existing_model_is_reused_with_settings_on_top(create_model: Create) -> None:
    """MF-8, T10: the same blobs; parameters add up, other settings replace the base's."""
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


def draft_in(tmp_path: Path, **config: object) -> Path:
    """A folder with a draft head of two tensors."""
    draft = tmp_path / "head"
    draft.mkdir()
    (draft / "config.json").write_text(json.dumps(config))
    save_file(
        {"fc.weight": torch.ones(2, 4), "norm.weight": torch.ones(4)}, draft / "model.safetensors"
    )
    return draft


@pytest.mark.usefixtures("folder")
def test_a_draft_is_stored_under_its_prefix(tmp_path: Path, create_model: Create) -> None:
    """MF-4, CFG-1, CFG-4: files under draft/, tensors with draft., architecture from its config."""
    draft_in(tmp_path, architectures=["Head"], model_type="other")
    model = create_model("FROM tiny\nDRAFT ./head")
    assert model.draft is not None
    assert model.draft.architecture == "Head"
    assert model.json("draft/config.json")["model_type"] == "other"
    names = [layer.name for layer in model.tensors]
    assert names[-2:] == ["draft.fc.weight", "draft.norm.weight"]
    assert torch.equal(stored_tensors(model)["draft.fc.weight"], torch.ones(2, 4))


@pytest.mark.usefixtures("folder")
def test_a_draft_goes_onto_an_existing_model_and_replaces_its_draft(
    tmp_path: Path, create_model: Create
) -> None:
    """MF-8, T10: the base's digests are reused; there is one draft afterwards."""
    base = create_model("FROM tiny", "base")
    draft = draft_in(tmp_path, model_type="first")
    first = create_model("FROM base\nDRAFT head", "first")
    assert first.tensors[: len(base.tensors)] == base.tensors
    edit_config(draft, model_type="second")
    save_file({"only.weight": torch.zeros(2)}, draft / "model.safetensors")
    second = create_model("FROM first\nDRAFT head", "second")
    assert second.draft is not None
    assert second.draft.architecture == "second"
    drafts = [layer.name for layer in second.tensors if layer.name.startswith("draft.")]
    assert drafts == ["draft.only.weight"]


@pytest.mark.usefixtures("folder")
def test_a_draft_without_an_architecture_is_refused_before_any_work(
    tmp_path: Path, create_model: Create, store: Store
) -> None:
    """CFG-4."""
    draft_in(tmp_path, hidden_size=4)
    refuse(create_model, "FROM tiny\nDRAFT head", "names no architecture", store)
    assert not store.layout.blobs.exists()


def test_a_missing_tensor_is_named(folder: Path, create_model: Create, store: Store) -> None:
    """F13: nothing is filled in, and nothing is written."""
    edit_tensors(folder, lambda tensors: {n: t for n, t in tensors.items() if n != NORM})
    refuse(create_model, "FROM tiny", NORM, store)
    assert not store.layout.blobs.exists()


def test_a_missing_tensor_of_a_gguf_file_is_named(
    folder: Path, tmp_path: Path, create_model: Create, store: Store
) -> None:
    """F13."""
    edit_tensors(folder, lambda tensors: {n: t.float() for n, t in tensors.items() if n != NORM})
    convert_folder(folder, tmp_path / "a.gguf", "llama")
    refuse(create_model, "FROM a.gguf", r"blk\.1\.ffn_norm\.weight", store)


def test_a_misshapen_tensor_is_named(folder: Path, create_model: Create, store: Store) -> None:
    """F13."""
    edit_tensors(folder, lambda tensors: tensors | {NORM: torch.ones(63)})
    refuse(create_model, "FROM tiny", NORM, store)


def test_surplus_tensors_are_kept_and_listed(
    folder: Path, create_model: Create, caplog: pytest.LogCaptureFixture
) -> None:
    """F13, 06 CON-14: one warning."""
    edit_tensors(folder, lambda tensors: tensors | {"model.extra": torch.ones(3)})
    with caplog.at_level(logging.WARNING, ROOT):
        model = create_model("FROM tiny")
    assert "model.extra" in caplog.text
    assert "model.extra" in [layer.name for layer in model.tensors]


def test_an_unknown_architecture_is_named(folder: Path, create_model: Create, store: Store) -> None:
    """F13."""
    edit_config(folder, architectures=["Foo"])
    refuse(create_model, "FROM tiny", "Foo", store)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("value", [float("nan"), -float("nan")])
def test_a_nan_is_named(
    folder: Path, create_model: Create, store: Store, dtype: torch.dtype, value: float
) -> None:
    """F13: a tensor with one NaN in it stops the import; infinities may be meant."""

    def spoil(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        bad = tensors[NORM].to(dtype)
        bad[5], bad[6] = value, float("inf")
        return tensors | {NORM: bad}

    edit_tensors(folder, spoil)
    refuse(create_model, "FROM tiny", rf"{NORM} holds values that are no numbers", store)


def test_a_nan_scale_of_a_gguf_file_is_named(
    folder: Path, tmp_path: Path, create_model: Create, store: Store
) -> None:
    """F13."""

    def spoil(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        tensors = {name: tensor.float() for name, tensor in tensors.items()}
        tensors["model.layers.0.mlp.up_proj.weight"][3, 3] = float("inf")
        return tensors

    edit_tensors(folder, spoil)
    with pytest.warns(RuntimeWarning):  # the gguf package divides by the infinite scale
        convert_folder(folder, tmp_path / "a.gguf", "llama", matrices=Q8_0)
    refuse(create_model, "FROM a.gguf", r"blk\.0\.ffn_up\.weight holds values", store)


def test_a_truncated_shard_is_named(folder: Path, create_model: Create, store: Store) -> None:
    """F13, 07 T6."""
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    refuse(create_model, "FROM tiny", r"model\.safetensors is truncated", store)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(folder: Path) -> None:
    """F13: the tensor is named; what is gone is not read as zeros."""
    checkpoint = folder_source(folder).checkpoint
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    last = max(checkpoint.plans, key=lambda plan: read_offset(weights, plan.source))
    with pytest.raises(ImportFailedError, match=f"ends inside tensor {last.source}"):
        write_tensors(checkpoint.open(last), io.BytesIO())


def read_offset(path: Path, name: str) -> int:
    """Where a tensor ends, by the header of its file."""
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    end = header[name]["data_offsets"][1]
    assert isinstance(end, int)
    return end


def test_an_index_that_asks_for_more_is_incomplete(
    tmp_path: Path, create_model: Create, store: Store
) -> None:
    """T6, INV-2: the tensor is named."""
    folder = tiny_folder(tmp_path / "tiny", "llama", shard_size="60KB")
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["model.more"] = document["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(document))
    refuse(create_model, "FROM tiny", r"incomplete: tensor 'model\.more'", store)


def test_renumbered_control_tokens_are_refused(
    folder: Path, create_model: Create, store: Store
) -> None:
    """F07, TOK-1: the two files that disagree are both named."""
    path = folder / "tokenizer_config.json"
    document = json.loads(path.read_text())
    entry = document["added_tokens_decoder"].pop("258")
    document["added_tokens_decoder"]["259"] = entry
    path.write_text(json.dumps(document))
    refuse(create_model, "FROM tiny", r"id 259 in tokenizer_config.* 258 in tokenizer\.json", store)


def test_a_folder_without_a_tokenizer_is_refused(
    folder: Path, create_model: Create, store: Store
) -> None:
    """TOK-1."""
    (folder / "tokenizer.json").unlink()
    refuse(create_model, "FROM tiny", r"no tokenizer\.json", store)


@pytest.mark.parametrize(
    "edit",
    [
        lambda t: t | {"model.layers.0.mlp.up_proj.scales": torch.ones(3)},
        lambda t: t | {"model.layers.0.mlp.up_proj.weight_packed": torch.ones(3)},
        lambda t: t | {NORM: t[NORM].to(torch.float8_e4m3fn)},
    ],
)
def test_weights_that_a_publisher_quantised_are_refused(
    folder: Path, create_model: Create, store: Store, edit: object
) -> None:
    """Not read yet, and never passed on as if they were floats."""
    assert callable(edit)
    edit_tensors(folder, edit)
    refuse(create_model, "FROM tiny", "quantised by its publisher", store)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shipped", [True, False])
def test_tied_heads(
    tmp_path: Path, create_model: Create, store: Store, tied: bool, shipped: bool
) -> None:
    """F01: a missing head is an error that names it, unless the config ties it."""
    folder = tiny_folder(tmp_path / "tiny", "llama", tie_word_embeddings=False)
    edit_config(folder, tie_word_embeddings=tied)
    if not shipped:
        edit_tensors(folder, lambda t: {n: v for n, v in t.items() if n != "lm_head.weight"})
    if tied or shipped:
        assert create_model("FROM tiny").tensors
    else:
        refuse(create_model, "FROM tiny", r"lm_head", store)


@pytest.mark.usefixtures("folder")
def test_a_name_on_a_hub_cannot_be_created(create_model: Create) -> None:
    with pytest.raises(RequestError, match="without a host"):
        create_model("FROM tiny", "hf.co/a/b")


@pytest.mark.usefixtures("folder")
def test_nothing_is_left_for_another_try_after_success(create_model: Create, store: Store) -> None:
    create_model("FROM tiny")
    assert list(store.layout.downloads.iterdir()) == []
    assert store.collect() == 0


@pytest.mark.usefixtures("folder")
def test_two_imports_of_one_source_at_once(
    store: Store, reporter: Reporter, tmp_path: Path
) -> None:
    """CAT-6: one waits for the other's tensors, both names are there and whole."""

    def run(name: str) -> Digest:
        request = CreateRequest(name=name, modelfile="FROM tiny", folder=str(tmp_path))
        return create(request, Store(store.layout.root), reporter)

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
