"""Models created in another type than they came in: what the store holds, and what it is worth."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from fixtures.checkpoints import (
    edit_config,
    edit_tensors,
    loaded,
    logits,
    placement,
)
from fixtures.eagle3 import TinyHead
from fixtures.tiny import Family, tiny_folder
from forerun.base.errors import RequestError
from forerun.importer.create import create
from forerun.importer.policy.kinds import SOURCE
from forerun.importer.progress import Reporter
from forerun.importer.run import ImportRun
from forerun.importer.sources import folder_source, gguf_source, stored_source
from forerun.models.load import load_model
from forerun.protocol.events import Failed
from forerun.protocol.imports import ComposeRequest, CreateRequest, Imported, ImportEvent
from forerun.quant.codec import quantise
from forerun.quant.formats import QuantFormat
from forerun.quant.parts import stored_parts
from forerun.store import manifest as kinds
from forerun.store.describe import describe
from forerun.store.names import ModelName
from forerun.store.store import Store
from forerun.store.stored import StoredModel
from unit.importer.gguf_files import convert_folder
from unit.importer.source_folders import values, write_folder

Quantise = Callable[..., StoredModel]

UP = "model.layers.1.mlp.up_proj.weight"
DOWN = "model.layers.1.mlp.down_proj.weight"
NORM = "model.layers.1.input_layernorm.weight"
TOKENS = list(range(40))
# Half as much again as the types cost tiny random models; unrelated logits are 1.4 apart.
WORST = {"int4": 0.52, "int8": 0.045, "nvfp4": 0.55, "mxfp4": 0.6, "mxfp8": 0.23}
SHAPE: dict[str, object] = {"hidden_size": 64, "intermediate_size": 192, "head_dim": 32}


@pytest.fixture
def create_in(store: Store, reporter: Reporter, tmp_path: Path) -> Quantise:
    """create_in(kind, modelfile="FROM tiny", name="made", draft="") in the test's folder."""

    def run(
        kind: str, modelfile: str = "FROM tiny", name: str = "made", draft: str = ""
    ) -> StoredModel:
        request = CreateRequest(
            name=name,
            modelfile=modelfile,
            folder=str(tmp_path),
            quantize=kind,
            quantize_draft=draft,
        )
        create(request, store, reporter)
        return store.get(ModelName.parse(name))

    return run


def tensors_of(model: StoredModel) -> dict[str, Tensor]:
    return {
        name: tensor
        for layer in model.tensors
        for name, tensor in load_file(model.file(layer)).items()
    }


def types_of(model: StoredModel) -> dict[str, str]:
    """By layer, what its blob says; "" for dense ones."""
    found: dict[str, str] = {}
    for layer in model.tensors:
        with safe_open(model.file(layer), "pt") as blob:
            found[layer.name] = (blob.metadata() or {}).get("quant_type", "")
    return found


@pytest.mark.parametrize("kind", WORST)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_a_quantised_model_says_nearly_what_it_said(
    tmp_path: Path, create_in: Quantise, family: Family, kind: str
) -> None:
    """F05, PLN-5, CLS-5: norms keep their bits, and so do tables that are no heads (decision
    0022); logits move as far as the type is coarse."""
    folder = tiny_folder(tmp_path / "tiny", family, **SHAPE)
    model = create_in(kind)
    files = [model.file(layer) for layer in model.tensors]
    ours = logits(load_model(model.json("config.json"), files, placement()), TOKENS)
    theirs = logits(loaded(folder), TOKENS)
    assert (ours - theirs).norm() < WORST[kind] * theirs.norm()
    assert model.config.file_type == describe(model).quantisation == kind
    original, found = load_file(folder / "model.safetensors"), tensors_of(model)
    dense = [name for name, type_ in types_of(model).items() if not type_]
    is_head = "lm_head.weight" not in original and kind in ("int4", "int8")
    kept = ("norm",) if is_head else ("norm", "embed")
    assert {name for name in original if any(part in name for part in kept)} == set(dense)
    assert all(torch.equal(found[name], original[name]) for name in dense)


@pytest.mark.parametrize("kind", WORST)
def test_a_stored_weight_is_the_codecs(tmp_path: Path, create_in: Quantise, kind: str) -> None:
    """PLN-5, POL-5: word for word, of the type that the policy gives it."""
    folder = tiny_folder(tmp_path / "tiny", "llama", dtype=torch.bfloat16, **SHAPE)
    model = create_in(kind)
    found, original = tensors_of(model), load_file(folder / "model.safetensors")
    eight = {"int4": "int8", "nvfp4": "mxfp8", "mxfp4": "mxfp8"}.get(kind, kind)
    groups = {"int4": 64, "int8": 64, "nvfp4": 16, "mxfp4": 32, "mxfp8": 32}
    for name, type_ in ((UP, kind), (DOWN, eight)):
        form = QuantFormat(type_, groups[type_])
        for suffix, part in stored_parts(quantise(original[name], form)).items():
            assert torch.equal(found[name + suffix], part), name + suffix
        assert types_of(model)[name] == type_


def test_what_does_not_divide_is_kept(tmp_path: Path, create_in: Quantise) -> None:
    """POL-4, F05: an import never fails for it."""
    tiny_folder(tmp_path / "tiny", "llama", hidden_size=64, intermediate_size=96)
    types = types_of(create_in("int4"))
    assert (types[UP], types[DOWN]) == ("int4", "")


def test_an_import_is_the_same_whenever_it_runs(
    folder: Path, create_in: Quantise, tmp_path: Path
) -> None:
    """CFG-3: equal manifests, so equal blobs."""
    first = create_in("nvfp4", name="first")
    edit_config(folder)  # touched, so that no journal speaks for it
    elsewhere = Store(tmp_path / "elsewhere")
    request = CreateRequest(
        name="other", modelfile="FROM tiny", folder=str(tmp_path), quantize="NVFP4"
    )
    with (tmp_path / "unheard").open("wb") as unheard:
        create(request, elsewhere, Reporter(unheard.fileno()))
    assert elsewhere.get(ModelName.parse("other")).tensors == first.tensors


class Interruption(Exception):
    """Stands for the process's end."""


class Interrupting(Reporter):
    """Stops the import once `after` bytes are done."""

    after: int = 0

    def send(self, event: ImportEvent) -> None:
        assert not isinstance(event, Imported | Failed)
        if event.status == "quantising tensors" and (event.completed or 0) >= self.after:
            raise Interruption


@pytest.fixture
def interrupted(tmp_path: Path, store: Store) -> dict[str, int]:
    tiny_folder(tmp_path / "tiny", "llama", **SHAPE)
    return interrupt(tmp_path, store)


def interrupt(tmp_path: Path, store: Store) -> dict[str, int]:
    """An int4 import that stopped on its way: the blobs it wrote, and their inodes."""
    request = CreateRequest(
        name="made", modelfile="FROM tiny", folder=str(tmp_path), quantize="int4"
    )
    with (tmp_path / "unheard").open("wb") as unheard:
        stopping = Interrupting(unheard.fileno(), interval_s=0.0)
        stopping.after = 200_000
        with pytest.raises(Interruption):
            create(request, store, stopping)
    assert store.entries() == []
    return {blob.name: blob.stat().st_ino for blob in store.folders.blobs.glob("sha256-*")}


def test_an_interrupted_import_goes_on_where_it_was(
    interrupted: dict[str, int], store: Store, create_in: Quantise
) -> None:
    """CFG-6, 07 T13: there was no manifest, and nothing is written a second time."""
    assert len(interrupted) > 3
    create_in("int4")
    after = {blob.name: blob.stat().st_ino for blob in store.folders.blobs.iterdir()}
    assert {name: after[name] for name in interrupted} == interrupted


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("kind", ["", "int8"])
def test_an_interrupted_import_counts_for_its_own_type(create_in: Quantise, kind: str) -> None:
    """CAT-4: another type begins anew."""
    assert set(types_of(create_in(kind)).values()) == {kind, ""}


def journal_keys(folder: Path, model: StoredModel, gguf: Path) -> list[str]:
    """Of a folder, a stored model, and a GGUF file, in this order."""
    sources = folder_source(folder, quantize="int4"), stored_source(model, "int4")
    return [*(source.key for source in sources), gguf_source(gguf, quantize="int4").key]


def test_a_key_stands_for_the_plan_as_well(
    folder: Path, tmp_path: Path, create_in: Quantise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CAT-4: the same bytes with the same plan have the same key, with another one another."""
    model = create_in("")
    edit_tensors(folder, lambda tensors: {n: t.float() for n, t in tensors.items()})
    convert_folder(folder, tmp_path / "a.gguf", "llama")
    before = journal_keys(folder, model, tmp_path / "a.gguf")
    assert journal_keys(folder, model, tmp_path / "a.gguf") == before
    monkeypatch.setattr("forerun.importer.sources.chooser", lambda *_, **__: keep_all)
    monkeypatch.setattr(
        "forerun.importer.gguf_reader.checkpoint.chooser", lambda *_, **__: keep_all
    )
    after = journal_keys(folder, model, tmp_path / "a.gguf")
    assert not set(after) & set(before)


def keep_all(name: str, shape: tuple[int, ...]) -> str:
    """A policy under which nothing is quantised."""
    del name, shape
    return SOURCE


def state(folder: Path, *, tied: bool) -> None:
    """An index and a configuration that say so; with a head in the file, either is possible."""
    names = load_file(folder / "model.safetensors").keys() - ({"lm_head.weight"} if tied else set())
    index = {"weight_map": dict.fromkeys(names, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    edit_config(folder, tie_word_embeddings=tied)


def test_a_corrected_index_is_not_answered_from_an_older_plan(
    tmp_path: Path, store: Store, create_in: Quantise
) -> None:
    """CAT-4: the table of what was taken for a tied model was quantised; its bytes are as ever."""
    state(tiny_folder(tmp_path / "tiny", "llama", **SHAPE), tied=True)
    assert interrupt(tmp_path, store)
    state(tmp_path / "tiny", tied=False)
    types = types_of(create_in("int4"))
    assert (types["model.embed_tokens.weight"], types["lm_head.weight"]) == ("", "int8")


def test_bytes_are_counted_to_the_end(tmp_path: Path, create_in: Quantise, events: Path) -> None:
    """RUN-13: of the source, whatever their weights become; never back, and all of them."""
    folder = tiny_folder(tmp_path / "tiny", "llama", **SHAPE)
    create_in("mxfp4")
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    counted = [line["completed"] for line in lines if line["status"] == "quantising tensors"]
    total = sum(t.nbytes for t in load_file(folder / "model.safetensors").values())
    assert counted == sorted(counted)
    assert (counted[-1], lines[-1]["total"]) == (total, total)


def test_bytes_are_counted_as_a_large_weight_is_quantised(tmp_path: Path, store: Store) -> None:
    """RUN-13: slab by slab, so that nobody waits for one tensor in the dark."""
    folder = write_folder(tmp_path / "large", {UP: torch.randn(4096, 1024).bfloat16()})
    with (tmp_path / "events").open("wb") as file, store.importing() as writer:
        run = ImportRun(store, writer, Reporter(file.fileno(), interval_s=0.0))
        run.tensor_layers(folder_source(folder, quantize="int4"), "tensors")
    lines = (tmp_path / "events").read_text().splitlines()
    counted = [json.loads(line)["completed"] / 2**23 for line in lines]
    steps = [after - before for before, after in zip([0.0, *counted], counted, strict=False)]
    assert counted[-1] == 1.0
    assert 0 < min(steps) <= max(steps) < 0.2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_value_that_is_no_number_is_named(
    folder: Path, store: Store, create_in: Quantise, value: float
) -> None:
    """F13, 07 T11."""

    def spoil(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        tensors[UP][3, 5] = value
        return tensors

    edit_tensors(folder, spoil)
    with pytest.raises(Exception, match=rf"tensor {UP}.*number"):
        create_in("int8")
    assert store.entries() == []


@pytest.mark.usefixtures("folder")
def test_an_unknown_type_is_refused_before_any_work(store: Store, create_in: Quantise) -> None:
    """MF-7."""
    with pytest.raises(RequestError, match=r"quantize is 'q5'.*int4, int8"):
        create_in("q5")
    with pytest.raises(RequestError, match=r"quantize-draft is 'q5'.*int4, int8"):
        create_in("", draft="q5")
    assert not store.folders.blobs.exists()


@pytest.mark.usefixtures("folder")
def test_a_drafts_type_needs_a_draft(
    store: Store, create_in: Quantise, reporter: Reporter, tmp_path: Path
) -> None:
    """MF-6: whether a Modelfile's text or its values came."""
    with pytest.raises(RequestError, match=r"quantize-draft is int8.*no DRAFT"):
        create_in("int4", draft="q8")
    request = ComposeRequest(name="x", source="tiny", folder=str(tmp_path), quantize_draft="int8")
    with pytest.raises(RequestError, match=r"no DRAFT"):
        create(request, store, reporter)


@pytest.mark.usefixtures("folder")
def test_target_and_draft_have_types_of_their_own(tmp_path: Path, create_in: Quantise) -> None:
    """MF-6, POL-7: the draft's head and table take its type directly; unaligned rows stay."""
    TinyHead(own_embedding=True).write(tmp_path / "head")
    types = types_of(create_in("int8", "FROM tiny\nDRAFT head", draft="int4"))
    assert types[UP] == "int8"
    drafts = {name: type_ for name, type_ in types.items() if name.startswith("draft.")}
    taken = ("fc", "lm_head", "embed_tokens", "norm", "layers.0.mlp.down_proj")
    assert {name: drafts[f"draft.{name}.weight"] for name in taken} == {
        **{"fc": "int4", "lm_head": "int4", "embed_tokens": "int4"},
        **{"norm": "", "layers.0.mlp.down_proj": ""},  # of 96 columns
    }
    plain = types_of(create_in("", "FROM tiny\nDRAFT head", draft="int4"))
    assert (plain[UP], plain["draft.fc.weight"]) == ("", "int4")
    target = types_of(create_in("int8", "FROM tiny\nDRAFT head"))
    assert (target[UP], target["draft.fc.weight"]) == ("int8", "")


@pytest.mark.usefixtures("folder")
def test_a_stored_models_weights_can_be_quantised(tmp_path: Path, create_in: Quantise) -> None:
    """MF-8: FROM a name; all but the target's tensors are reused, its draft and settings too."""
    TinyHead().write(tmp_path / "head")
    base = create_in("", "FROM tiny\nDRAFT head\nPARAMETER top_k 7\nSYSTEM old", "base")
    model = create_in("int4", "FROM base\nSYSTEM new")
    assert model.config.file_type == "int4"
    assert types_of(model)[UP] == "int4"
    assert tensors_of(model).keys() >= {UP, f"{UP}.scale", f"{UP}.bias", "draft.fc.weight"}
    assert {layer.name for layer in model.tensors} == {layer.name for layer in base.tensors}
    assert model.manifest.of_type(kinds.JSON) == base.manifest.of_type(kinds.JSON)
    assert (model.parameters, model.system) == ({"top_k": 7}, "new")
    direct = create_in("int4", name="direct")
    own = [layer for layer in model.tensors if not layer.name.startswith("draft.")]
    assert own == list(direct.tensors)


@pytest.mark.usefixtures("folder")
def test_a_quantised_stored_model_is_not_quantised_again(create_in: Quantise) -> None:
    """CLS-4."""
    create_in("int8", name="base")
    with pytest.raises(RequestError, match=r"is int8 already; create it from the float check.*t$"):
        create_in("int4", "FROM base")
    assert create_in("", "FROM base").config.file_type == "int8"


@pytest.mark.usefixtures("folder")
def test_a_quantised_stored_model_with_a_draft_says_how_to_have_both(
    tmp_path: Path, create_in: Quantise
) -> None:
    """CLS-4, MF-6: a draft of the store goes with its model, and its own type stands."""
    TinyHead().write(tmp_path / "head")
    create_in("int8", "FROM tiny\nDRAFT head", "base")
    with pytest.raises(
        RequestError, match=r"create it from the float checkpoint, and name its DRAFT again$"
    ):
        create_in("int4", "FROM base")
    with pytest.raises(RequestError, match=r"name the draft's folder with DRAFT .*stays as it is"):
        create_in("", "FROM base", draft="int4")


def test_a_quantised_folder_is_not_quantised_again(
    folder: Path, create_in: Quantise, store: Store
) -> None:
    """CLS-4: before anything is written."""
    edit_tensors(folder, lambda t: t | {"model.layers.0.mlp.up_proj.scales": torch.ones(3)})
    with pytest.raises(RequestError, match=r"quantize is int4.*quantised already"):
        create_in("int4")
    assert not store.folders.blobs.exists()


@pytest.mark.parametrize(
    ("wish", "kind", "told"),
    [
        ("int8", "int4", ["already and keep their values: 16 (int4 16)"]),
        ("int4", "int4", ["already and keep their values: 16 (int4 16)"]),
        ("nvfp4", "nvfp4", ["already and keep their values: 1 (int4 1)"]),
        ("", "int4", []),
    ],
)
def test_blocks_that_keep_their_values_are_told_and_are_what_is_listed(
    tmp_path: Path, create_in: Quantise, events: Path, wish: str, kind: str, told: list[str]
) -> None:
    """GUF-2, CLS-5, 08 API-2: what is recorded, listed and said is what the weights are."""
    folder = tiny_folder(tmp_path / "tiny", "llama", tie_word_embeddings=False, **SHAPE)
    convert_folder(folder, tmp_path / "a.gguf", "llama", matrices=GGMLQuantizationType.Q4_1)
    model = create_in(wish, "FROM a.gguf")
    assert model.config.file_type == describe(model).quantisation == kind
    lines = [line for line in events.read_text().splitlines() if "already" in line]
    assert len(lines) == len(told)
    assert all(text in line for text, line in zip(told, lines, strict=True))


def test_values_of_a_stored_weight_are_near(tmp_path: Path, create_in: Quantise) -> None:
    """PLN-5: a weight is read back by what its blob says, the embedding by what it is."""
    folder = tiny_folder(tmp_path / "tiny", "qwen3", **SHAPE)
    model = create_in("int8")
    found = values(tensors_of(model), {"quant_type": "int8", "group_size": "64"}, UP)
    original = load_file(folder / "model.safetensors")[UP]
    assert (found - original).abs().max() < original.abs().max() / 100
