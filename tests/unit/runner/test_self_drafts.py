"""A checkpoint's own head from its folder to the answers: CON-5, QWN-13, 03 DRF-8, MTP-10, A07."""

import dataclasses
import json
import logging
import os
from pathlib import Path

import pytest
import torch

from fixtures.checkpoints import edit_tensors, logits, placement, read_config
from fixtures.qwen import hybrid_folder, wrapped_folder
from fixtures.tiny import stored_at, tiny_folder
from fixtures.toy import ListSink
from forerun.base.errors import LoadError
from forerun.cli.sections import text_of
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.importer.create import create
from forerun.importer.progress import Reporter
from forerun.models.load import load_model
from forerun.protocol.imports import CreateRequest
from forerun.runner import compose
from forerun.runner.compose import assemble, load_engine
from forerun.runner.request import LoadRequest
from forerun.sampling.options import SamplingOptions
from forerun.speculation.drafters.chain import ChainDrafter
from forerun.speculation.drafters.draft_model import DraftModelDrafter
from forerun.store.names import ModelName
from forerun.store.store import Store

PLAIN = SamplingOptions(temperature=0.0, draft="off")
PROMPT = list(range(97, 117))


def opened(checkpoint: Path, folder: Path, modelfile: str = "") -> LoadedModel:
    """As `create` and the runner take a folder of a model."""
    store = Store(folder / "store")
    text = f"FROM {checkpoint}\nPARAMETER num_ctx 400\n{modelfile}"
    with open(os.devnull, "wb") as unheard:
        request = CreateRequest(name="tiny", modelfile=text, folder=str(folder))
        create(request, store, Reporter(unheard.fileno()))
    stored = store.get(ModelName.parse("tiny"))
    threads = torch.get_num_threads()
    try:
        with torch.inference_mode():
            return load_engine(stored, LoadRequest("tiny", store.folders.root), lambda *_: None)
    finally:
        torch.set_num_threads(threads)


@torch.inference_mode()
def ask(loaded: LoadedModel, prompt: list[int], draft: str, *, seed: int | None = None) -> ListSink:
    sink, sampling = ListSink(), dataclasses.replace(PLAIN, draft=draft)
    if seed is not None:
        sampling = dataclasses.replace(sampling, seed=seed, temperature=0.8, repeat_penalty=1.2)
    generate(loaded, Job(tuple(prompt), frozenset(), sampling, 24, sink))
    assert sink.error is None
    return sink


@pytest.mark.parametrize("make", [hybrid_folder, wrapped_folder])
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_a_head_of_the_checkpoint_drafts_from_the_start(tmp_path, make, family):
    """F15, A07, GEN-3, MTP-10: turn by turn, with and without drafts, greedy and seeded; the head's
    cache is part of what conversations keep, and its drafts are counted."""
    loaded = opened(make(tmp_path / "checkpoint", family, seed=3), tmp_path)
    assert isinstance(loaded.drafters.primary, ChainDrafter)
    assert loaded.drafters.choices() == ("auto", "model", "lookup", "off")
    assert loaded.drafters.look_ahead == 1
    caches = [*loaded.caches, *loaded.drafters.caches]
    assert len(caches) == 5
    text, known, drafted = list(PROMPT), 0, 0
    for turn, draft in enumerate(("auto", "off", "model", "lookup", "model")):
        seed = turn if turn % 2 else None
        sink = ask(loaded, text, draft, seed=seed)
        assert sink.figures.cached_tokens == known
        alone = assemble(loaded.model, loaded.context)
        assert sink.tokens == ask(alone, text, "off", seed=seed).tokens
        if draft in ("auto", "model"):
            assert sink.figures.drafting.drafter == "model"
            drafted += sink.figures.drafted_tokens
        assert {cache.offset for cache in caches} == {len(text) + 23}
        text += sink.tokens
        known = len(text) - 1
        text += [98 + turn, 97]
    assert drafted > 0


def test_the_weights_of_the_head_are_the_models_too(tmp_path):
    """08 FIT-1: counted once, tables that it shares not at all."""
    with_head = opened(hybrid_folder(tmp_path / "with"), tmp_path / "1")
    without = opened(tiny_folder(tmp_path / "without", "qwen3_5"), tmp_path / "2")
    assert with_head.model.facts.weight_bytes == without.model.facts.weight_bytes
    draft = with_head.model.self_draft()
    assert draft is not None
    assert with_head.weight_bytes == without.weight_bytes + draft.facts.weight_bytes


def test_heads_that_would_not_be_bound_stay_in_their_files(tmp_path, caplog, monkeypatch):
    """A07, CON-5: the target's own beside a draft of the manifest, and that draft's own; their
    bytes are in no sum, and nothing is said to be unused."""
    models = []

    def loading(*given, **named):
        models.append(load_model(*given, **named))
        return models[-1]

    monkeypatch.setattr(compose, "load_model", loading)
    draft = hybrid_folder(tmp_path / "draft", seed=5)
    with caplog.at_level(logging.WARNING, "forerun"):
        loaded = opened(hybrid_folder(tmp_path / "target"), tmp_path, f"DRAFT {draft}\n")
    assert "not used" not in caplog.text
    assert isinstance(loaded.drafters.primary, DraftModelDrafter)
    assert [model.self_draft() for model in models] == [None, None]
    small = opened(tiny_folder(tmp_path / "without", "qwen3_5", seed=5), tmp_path / "alone")
    assert loaded.weight_bytes == loaded.model.facts.weight_bytes + small.model.facts.weight_bytes
    assert ask(loaded, PROMPT, "model").tokens == ask(loaded, PROMPT, "off").tokens


def test_half_a_head_that_is_not_wanted_is_no_error(tmp_path):
    """A07: nobody reads it; wanted, it is one."""
    folder = hybrid_folder(tmp_path)
    whole = load_model(read_config(folder), [folder / "model.safetensors"], placement())
    edit_tensors(folder, lambda found: {n: t for n, t in found.items() if n != "mtp.norm.weight"})
    model = load_model(
        read_config(folder), [folder / "model.safetensors"], placement(), own_draft=False
    )
    assert model.self_draft() is None
    assert torch.equal(logits(model, PROMPT), logits(whole, PROMPT))  # its norms are shifted still
    with pytest.raises(LoadError, match=r"no tensor mtp\.norm\.weight"):
        load_model(read_config(folder), [folder / "model.safetensors"], placement())


def test_a_model_that_wants_its_head_and_has_none_is_refused(tmp_path):
    """GEN-3, A07: the config announces one, and its tensors were left out."""
    folder = tiny_folder(tmp_path / "checkpoint", "qwen3_5")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"mtp_num_hidden_layers": 1}))
    with pytest.raises(LoadError, match="says PARAMETER draft model and has no draft"):
        opened(folder, tmp_path, "PARAMETER draft model\n")
    assert opened(folder, tmp_path).drafters.choices() == ("auto", "lookup", "off")


@pytest.mark.parametrize("mtp", [True, False])
def test_show_tells_of_the_head(tmp_path: Path, mtp: bool) -> None:
    """CON-5, F15: and of none where there is none."""
    store = stored_at(tmp_path / "store", hybrid_folder(tmp_path / "folder", mtp=mtp))
    model = store.get(ModelName.parse("tiny"))
    assert ("the checkpoint's own head" in text_of(model, "info")) is mtp
