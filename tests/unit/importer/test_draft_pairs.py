"""Drafts that do not fit their model, refused before anything is written (05 LOD-9, 03 EGL-9)."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fixtures.checkpoints import edit_config, edit_tensors
from fixtures.eagle3 import TinyHead
from fixtures.qwen import hybrid_folder
from fixtures.tiny import tiny_folder
from forerun.base.errors import ForerunError, RequestError
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.protocol.imports import CreateRequest
from forerun.store.manifest import PARAMS
from forerun.store.store import Store
from unit.importer.conftest import Create, Refuse

HEAD = TinyHead()
TEXT = "FROM tiny\nDRAFT draft\n"
NAMED = "the draft of made:latest: "


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (replace(HEAD, vocabulary=300), "300 tokens large; this one's is 264; give it a head"),
        (replace(HEAD, target_hidden=96), "streams 96 wide; this one's is 64; give it a head"),
        (replace(HEAD, taps=(0, 1, 9)), "after layer 9, and the model has 2 layers; give it"),
        (replace(HEAD, extra={"eagle_aux_hidden_state_layer_ids": ...}), "has no default ones; "),
        (replace(HEAD, hidden=96, dim=24), "it is 96 wide, and the model's own, which is 64"),
        (replace(HEAD, mapped=False), "40 logits and no tensor d2t, and the model has 264"),
        (replace(HEAD, kind="gemma3"), "'gemma3'; it must be one of llama, qwen3"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_head_for_another_model_is_refused(
    tmp_path: Path, refuse: Refuse, store: Store, head: TinyHead, message: str
) -> None:
    """EGL-6, EGL-7, EGL-9: with both values and what to do."""
    head.write(tmp_path / "draft")
    refuse(TEXT, NAMED + ".*" + message)
    assert not store.folders.blobs.exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"norm__weight": None}, "norm is missing"),
        ({"fc__weight": torch.zeros(64, 128)}, "fc.weight takes 128 numbers, and 3 .* 192 .*; P"),
        ({"lm_head__weight": torch.zeros(41, 64)}, r"lm_head.weight has shape \[41, 64\]"),
        ({"mystery": torch.zeros(2)}, "has 'mystery', which EAGLE-3 heads have not"),
        ({"fc__bias": torch.zeros(64)}, "biases, 'fc.bias'"),
        ({"d2t": torch.zeros(41, dtype=torch.int64)}, r"d2t holds \[41\] .* 40 logits"),
        (
            {"t2d": torch.ones(300, dtype=torch.bool)},
            "t2d has .300. entries, and the model has 264",
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_tensors_that_make_up_no_head_are_refused(
    tmp_path: Path, refuse: Refuse, changed: dict[str, torch.Tensor | None], message: str
) -> None:
    """EGL-6, EGL-7: as far as their shapes tell."""
    HEAD.write(tmp_path / "draft", **changed)
    refuse(TEXT, NAMED + ".*" + message)


@pytest.mark.parametrize("layers", ["0,1", "0,1,9"])
@pytest.mark.usefixtures("folder")
def test_layers_that_a_head_cannot_read_are_refused(
    tmp_path: Path, create_model: Create, layers: str
) -> None:
    """EGL-3: beside a new head, and over a model of the store that has one."""
    HEAD.write(tmp_path / "draft")
    create_model(TEXT + "PARAMETER draft_layers 2,0,1", "base")
    for text in (TEXT, "FROM base\n"):
        with pytest.raises(RequestError, match=r"and 2 of the target|after layer 9"):
            create_model(f"{text}PARAMETER draft_layers {layers}")
    with pytest.raises(RequestError, match="draft_layers 1 is for an EAGLE-3 head, which this m"):
        create_model("FROM tiny\nPARAMETER draft_layers 1")


@pytest.mark.usefixtures("folder")
def test_layers_that_the_base_names_are_for_its_own_head(
    tmp_path: Path, create_model: Create
) -> None:
    """03 EGL-3, MF-8: they stay and go with it; what the Modelfile itself names counts."""
    HEAD.write(tmp_path / "draft")
    base = create_model(TEXT + "PARAMETER draft_layers 2,0,1", "base")
    assert create_model("FROM base").manifest.of_type(PARAMS) == base.manifest.of_type(PARAMS)
    assert create_model("FROM base\nPARAMETER seed 2").parameters == {
        **{"draft_layers": "2,0,1", "seed": 2},
    }
    tiny_folder(tmp_path / "small", "llama")
    alone = create_model("FROM base\nDRAFT small")
    assert (alone.parameters, alone.manifest.of_type(PARAMS)) == ({}, ())
    replace(HEAD, taps=(0, 1, 9)).write(tmp_path / "other")
    with pytest.raises(RequestError, match="after layer 9"):
        create_model("FROM base\nDRAFT other")
    stated = create_model("FROM base\nDRAFT other\nPARAMETER draft_layers 1,2,0")
    assert stated.parameters == {"draft_layers": "1,2,0"}
    with pytest.raises(RequestError, match="draft_layers 1 is for an EAGLE-3 head"):
        create_model("FROM base\nDRAFT small\nPARAMETER draft_layers 1")


@pytest.mark.parametrize("kind", ["head", "model"])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("norm", "model.norm is missing"),
        ("rope", "spiral"),
        ("tokenizer", "tokenizer.json"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_the_model_lacks_is_not_said_of_its_draft(
    tmp_path: Path, create_model: Create, kind: str, fault: str, message: str
) -> None:
    """05 LOD-9: the same words as without a draft."""
    if kind == "head":
        HEAD.write(tmp_path / "draft")
    else:
        tiny_folder(tmp_path / "draft", "llama")
    tiny = tmp_path / "tiny"
    if fault == "norm":
        edit_tensors(tiny, lambda held: {n: t for n, t in held.items() if n != "model.norm.weight"})
    elif fault == "rope":
        edit_config(tiny, rope_parameters={"rope_type": "spiral"})
    else:
        (tiny / "tokenizer.json").write_text("{}")
    told = []
    for text in ("FROM tiny", TEXT):
        with pytest.raises(ForerunError, match=message) as caught:
            create_model(text)
        told.append((type(caught.value), str(caught.value)))
    assert told[0] == told[1]


@pytest.mark.usefixtures("folder")
def test_what_trainers_keep_of_the_target_is_no_mistake(
    tmp_path: Path, create_model: Create
) -> None:
    """EGL-6."""
    HEAD.write(tmp_path / "draft", verifier_lm_head__weight=torch.zeros(3))
    assert create_model(TEXT).draft is not None


def test_the_own_head_of_a_model_that_is_a_draft_is_not_asked_for(
    tmp_path: Path, create_model: Create
) -> None:
    """06 CON-5: nobody would bind it."""
    hybrid_folder(tmp_path / "tiny")
    draft = hybrid_folder(tmp_path / "draft", seed=5)
    edit_tensors(draft, lambda held: {n: t for n, t in held.items() if n != "mtp.norm.weight"})
    assert create_model(TEXT).draft is not None


@pytest.mark.parametrize("over", ["folder", "model"])
@pytest.mark.usefixtures("folder")
def test_a_model_with_another_vocabulary_is_refused_by_its_first_difference(
    tmp_path: Path, create_model: Create, over: str
) -> None:
    """DRM-2: whether the target is new or of the store."""
    create_model("FROM tiny", "base")
    draft = tiny_folder(tmp_path / "draft", "llama")
    text = TEXT if over == "folder" else "FROM base\nDRAFT draft"
    create_model(text, "fitting")
    path = draft / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    ids = tokenizer["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(RequestError, match="token 'a' is 97 in the target, 98 in the draft; a dra"):
        create_model(text)


@pytest.mark.usefixtures("folder")
def test_a_model_with_fewer_rows_than_tokens_is_refused(tmp_path: Path, refuse: Refuse) -> None:
    """DRM-2: its tokenizer may be right all the same."""
    tiny_folder(tmp_path / "draft", "llama", vocab_size=257, eos_token_id=1, pad_token_id=1)
    refuse(TEXT, "the draft's output has 257 rows for 259 tokens")


@pytest.mark.usefixtures("folder")
def test_a_draft_that_could_not_be_loaded_is_refused(tmp_path: Path, refuse: Refuse) -> None:
    """F13: as a model of its own would be."""
    draft = tiny_folder(tmp_path / "draft", "llama")
    edit_tensors(
        draft, lambda tensors: {n: t for n, t in tensors.items() if n != "model.norm.weight"}
    )
    refuse(TEXT, NAMED + "model.norm is missing")
    TinyHead(extra={"architectures": ["Head"]}).write(draft)
    refuse(TEXT, NAMED + "architecture Head is not supported; supported are ")


@pytest.mark.usefixtures("folder")
def test_quantised_weights_are_held_against_each_other_by_their_values(
    tmp_path: Path, create_model: Create, store: Store, reporter: Reporter
) -> None:
    """PLN-5: of a model of the store and its draft, however they are packed."""
    HEAD.write(tmp_path / "draft")
    request = CreateRequest(
        name="base", modelfile=TEXT, folder=str(tmp_path), quantize="int8", quantize_draft="nvfp4"
    )
    create(request, store, reporter)
    assert create_model("FROM base\nPARAMETER draft_layers 2,1,0").draft is not None
    assert create_model("FROM base\nDRAFT draft").draft is not None
