"""Which drafters a stored model is loaded with: 03 DRF-8, GEN-1, DRM-1, DRM-2, EGL-1, MTP-10."""

import dataclasses
import json
import os

import pytest
import torch
from safetensors.torch import load, load_file, save, save_file

from fixtures.eagle3 import TinyHead
from fixtures.tiny import tiny_folder
from fixtures.toy import ListSink
from forerun.base.errors import LoadError, RequestError
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.protocol.imports import CreateRequest
from forerun.runner.compose import assemble, load_engine
from forerun.runner.request import LoadRequest
from forerun.sampling.options import SamplingOptions
from forerun.speculation.drafters.chain import ChainDrafter
from forerun.speculation.drafters.draft_model import DraftModelDrafter
from forerun.store.manifest import TENSOR
from forerun.store.names import ModelName
from forerun.store.store import Store

PROMPT = tuple(range(97, 117))
NAME = ModelName.parse("tiny")
PLAIN = SamplingOptions(temperature=0.0, draft="off")


def engine(folder, modelfile=""):
    return opened(created(folder, modelfile))


def created(folder, modelfile):
    text = f"FROM {tiny_folder(folder / 'checkpoint', 'llama')}\nPARAMETER num_ctx 400\n"
    store = Store(folder / "store")
    with open(os.devnull, "wb") as unheard:
        request = CreateRequest(name="tiny", modelfile=text + modelfile, folder=str(folder))
        create(request, store, Reporter(unheard.fileno()))
    return store


def opened(store):
    stored = store.get(NAME)
    threads = torch.get_num_threads()
    try:
        with torch.inference_mode():
            return load_engine(stored, LoadRequest("tiny", store.folders.root), lambda *_: None)
    finally:
        torch.set_num_threads(threads)


@torch.inference_mode()
def ask(loaded, prompt, draft, budget=40):
    sink, sampling = ListSink(), dataclasses.replace(PLAIN, draft=draft)
    generate(loaded, Job(tuple(prompt), frozenset(), sampling, budget, sink))
    assert sink.error is None
    return sink


@pytest.fixture
def unchecked(monkeypatch):
    """Models as they were created before `create` held a draft against its target."""
    monkeypatch.setattr("forerun.importer.check.check_pair", lambda *_: None)


def draft_model(folder):
    return f"DRAFT {tiny_folder(folder / 'small', 'llama')}\n"


def draft_head(folder):
    TinyHead().write(folder / "head")
    return f"DRAFT {folder / 'head'}\n"


def test_a_model_without_a_draft_has_lookup(tmp_path):
    """DRF-8, LKP-1: and `auto` is it."""
    loaded = engine(tmp_path)
    assert loaded.drafters.choices() == ("auto", "lookup", "off")
    assert loaded.drafters.owner is None
    assert ask(loaded, PROMPT, "auto").figures.drafting.drafter == "lookup"
    with pytest.raises(RequestError, match="draft is 'model'; this model offers auto, lookup, off"):
        loaded.drafters.chosen("model")


@pytest.mark.parametrize("draft", [draft_model, draft_head])
def test_a_draft_is_bound_beside_lookup_and_changes_no_answer(tmp_path, draft):
    """DRF-8, DRM-1, EGL-1: `auto` is the draft; warm or cold, and after a request that did not
    draft, what the caches hold is taken up again (GEN-3, MTP-10)."""
    loaded = engine(tmp_path, draft(tmp_path))
    kind, look_ahead = (DraftModelDrafter, 0) if draft is draft_model else (ChainDrafter, 1)
    assert isinstance(loaded.drafters.primary, kind)
    assert loaded.drafters.owner is loaded.drafters.primary
    assert loaded.drafters.look_ahead == look_ahead
    assert loaded.drafters.choices() == ("auto", "model", "lookup", "off")
    text, known = list(PROMPT), 0
    for turn, wanted in enumerate(("model", "off", "auto", "lookup", "model")):
        sink = ask(loaded, text, wanted)
        assert sink.figures.cached_tokens == known
        assert sink.tokens == ask(engine_alone(loaded), text, "off").tokens
        drafting = sink.figures.drafting
        named = {"off": None, "auto": "model"}.get(wanted, wanted)
        assert (None if drafting is None else drafting.drafter) == named
        assert len({cache.offset for cache in loaded.drafters.caches}) == 1
        text += sink.tokens
        known = len(text) - 1
        text += [98 + turn, 97]


def engine_alone(loaded):
    """The same model on caches of its own, without drafters."""
    return assemble(loaded.model, loaded.context)


def test_a_draft_that_is_its_target_is_always_right(tmp_path):
    """DRM-4, MTP-8: but for ties that rounding breaks, with fp32 kernels that know no widths."""
    loaded = engine(tmp_path, draft_model(tmp_path))
    figures = ask(loaded, PROMPT, "model", 120).figures
    assert figures.accepted_tokens > 0.9 * figures.drafted_tokens > 0


@pytest.mark.parametrize("wanted", ["off", "lookup", "auto", "model"])
def test_a_model_s_parameter_takes_no_choice_from_a_request(tmp_path, wanted):
    """GEN-3, DRF-8: it is what a request means that does not say."""
    loaded = engine(tmp_path, draft_model(tmp_path) + f"PARAMETER draft {wanted}\n")
    assert loaded.drafters.choices() == ("auto", "model", "lookup", "off")
    assert ask(loaded, PROMPT, "model").figures.drafting.drafter == "model"


@pytest.mark.parametrize("draft", [draft_model, draft_head])
def test_the_weights_of_a_model_are_its_draft_s_too(tmp_path, draft):
    """08 FIT-1: else what it takes at first looks like room that it has promised."""
    loaded = engine(tmp_path, draft(tmp_path))
    alone = engine(tmp_path / "alone")
    assert alone.weight_bytes == alone.model.facts.weight_bytes == loaded.model.facts.weight_bytes
    if draft is draft_model:
        assert loaded.weight_bytes == 2 * alone.weight_bytes
    else:
        stored = (tmp_path / "head" / "model.safetensors").stat().st_size
        assert stored / 4 < loaded.weight_bytes - alone.weight_bytes < stored


@pytest.mark.usefixtures("unchecked")
def test_what_is_wrong_with_a_draft_is_told_as_the_draft_s(tmp_path):
    """EGL-6: its checkpoint is not the only one at hand."""
    line = draft_head(tmp_path)
    path = tmp_path / "head" / "model.safetensors"
    tensors = load_file(path)
    del tensors["norm.weight"]
    save_file(tensors, path)
    with pytest.raises(LoadError, match="the draft of tiny:latest: norm is missing"):
        engine(tmp_path, line)


@pytest.mark.parametrize("draft", [draft_model, draft_head])
def test_a_manifest_says_what_the_names_of_a_draft_s_tensors_begin_with(tmp_path, draft, caplog):
    """CFG-1, CFG-2: none of them is taken for one of the target's, or missed."""
    store = created(tmp_path, draft(tmp_path))
    stored = store.get(NAME)
    stated = dataclasses.replace(stored.draft, tensor_prefix="ahead.")
    with store.importing() as writer:
        writer.keep(stored.manifest.blobs)
        layers = [renamed(stored, layer, writer) for layer in stored.manifest.layers]
        writer.publish(NAME, dataclasses.replace(stored.config, draft=stated), layers)
    assert opened(store).drafters.primary is not None
    assert "are not used" not in caplog.text


def renamed(stored, layer, writer):
    """A tensor of the draft with another beginning."""
    if not layer.name.startswith("draft."):
        return layer
    tensors = load(stored.read(layer))
    changed = {name.replace("draft.", "ahead.", 1): tensor for name, tensor in tensors.items()}
    return writer.add_layer(TENSOR, save(changed), layer.name.replace("draft.", "ahead.", 1))


def test_a_model_that_wants_a_draft_that_it_has_not_is_refused(tmp_path):
    with pytest.raises(LoadError, match="PARAMETER draft model and has no draft"):
        engine(tmp_path, "PARAMETER draft model\n")


@pytest.mark.usefixtures("unchecked")
def test_a_draft_with_another_vocabulary_is_refused_by_its_first_difference(tmp_path):
    """DRM-2, 05 LOD-9."""
    line = draft_model(tmp_path)
    path = tmp_path / "small" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(LoadError, match="token 'a' is 97 in the target, 98 in the draft"):
        engine(tmp_path, line)


@pytest.mark.usefixtures("unchecked")
def test_a_parameter_of_the_model_says_which_layers_a_head_reads(tmp_path):
    """EGL-3: whatever its config says."""
    loaded = engine(tmp_path, draft_head(tmp_path) + "PARAMETER draft_layers 2,0,1\n")
    assert loaded.model._taps == (0, 1, 2)
    for layers, match in (
        ("0,1", "2 of the target's"),
        ("0,1,99", "after layer 99"),
    ):
        with pytest.raises(LoadError, match=match):
            engine(tmp_path / layers, draft_head(tmp_path) + f"PARAMETER draft_layers {layers}\n")
    with pytest.raises(LoadError, match="draft_layers 1 is for an EAGLE-3 head"):
        engine(tmp_path / "small", draft_model(tmp_path) + "PARAMETER draft_layers 1\n")
