"""What the engine asks of a dense model beyond its numbers: caches, rows, views of itself."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fixtures.checkpoints import CPU, edit_tensors, loaded, logits
from fixtures.tiny import Family, tiny_folder
from forerun.cache.kv import KVCache
from forerun.cache.rotating import RotatingCache
from forerun.contract.batch import Batch
from forerun.contract.media import MediaItem
from forerun.contract.model import CacheOptions, MediaModel, SharedTables, TappedModel, TargetModel

FAMILIES: list[Family] = ["llama", "qwen3", "gemma3"]


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> TargetModel:
    return loaded(tiny_folder(tmp_path, request.param))


def test_a_cache_for_every_layer(model: TargetModel) -> None:
    """CON-3"""
    caches = model.new_caches(CacheOptions(context=32))
    assert len(caches) == model.facts.layers
    assert all(cache is not None and cache.offset == 0 for cache in caches)


def test_sliding_layers_rotate_and_full_layers_keep_all(tmp_path: Path) -> None:
    """CON-11, CON-12, GM3-2: a row of a sliding layer that left the window is gone."""
    model = loaded(tiny_folder(tmp_path, "gemma3"))
    caches = model.new_caches(CacheOptions(context=64, slack=16))
    model.forward(Batch.of(list(range(40)), 0, CPU), caches)
    sliding, full = caches[0], caches[1]
    assert isinstance(sliding, RotatingCache)
    assert isinstance(full, KVCache)
    assert sliding.view().live <= 8 < full.view().live == 40


def test_two_lists_of_caches_are_two_sequences(model: TargetModel) -> None:
    one, other = (model.new_caches(CacheOptions(context=32, slack=16)) for _ in range(2))
    with torch.inference_mode():
        model.forward(Batch.of([1, 2, 3, 4], 0, CPU), one)
        model.forward(Batch.of([9, 9, 9, 9], 0, CPU), other)
        ours = model.unembed(model.forward(Batch.of([5], 4, CPU), one).hidden)[0, 0]
    torch.testing.assert_close(ours, logits(model, [1, 2, 3, 4, 5])[-1], rtol=0, atol=1e-4)


def test_rows_have_their_own_positions_and_lengths(model: TargetModel) -> None:
    """CON-8, MSK-10: a row's result depends neither on other rows nor on padding."""
    rows = [list(range(12)), [7, 8, 9, 200, 201]]
    starts, lengths = (3, 50), (12, 5)
    batch = Batch(
        input_ids=torch.tensor([rows[0], rows[1] + [255] * 7]),
        starts=starts,
        lengths=lengths,
        start_offsets=torch.tensor(starts),
        valid_lengths=torch.tensor(lengths),
    )
    with torch.inference_mode():
        together = model.unembed(model.forward(batch, None).hidden)
    for row, tokens in enumerate(rows):
        alone = logits(model, tokens, start=starts[row])
        torch.testing.assert_close(together[row, : len(tokens)], alone, rtol=0, atol=1e-4)


def test_absolute_positions_do_not_matter_to_relative_attention(model: TargetModel) -> None:
    """ROP-2: only distances reach the logits, so a shifted prompt reads the same."""
    tokens = list(range(12))
    shifted = logits(model, tokens, start=100)
    torch.testing.assert_close(shifted, logits(model, tokens), rtol=0, atol=2e-3)


def test_text_models_offer_taps_and_neither_head_nor_media(model: TargetModel) -> None:
    """CON-5, CON-6, CON-10: without a tower there is no media interface, and whoever prepares a
    request refuses an image; one that gets through is a broken invariant."""
    assert model.self_draft() is None
    assert isinstance(model, TappedModel)
    assert not isinstance(model, MediaModel)
    image = MediaItem(0, 1, torch.zeros(1, 64), causal=True)
    with pytest.raises(AssertionError, match="text only"):
        model.forward(Batch.of([1, 2], 0, CPU, media=[image]), None)


@pytest.fixture
def few_unit_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.models.decoder._UNIT_VECTORS", 24)  # does not divide 64


@pytest.mark.usefixtures("few_unit_vectors")
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_get_the_table_and_the_head_raw(family: Family, tied: bool, tmp_path: Path) -> None:
    """03 EGL-6, EGL-7, DFL-3, DFL-5: the checkpoint's own rows; gemma3 without the embedding's
    factor (GM3-3) and the logits' softcap (GM3-7)."""
    capped = {"final_logit_softcapping": 2.0} if family == "gemma3" else {}
    model = loaded(tiny_folder(tmp_path, family, tie_word_embeddings=tied, **capped))
    tensors = load_file(tmp_path / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    head = table if tied else tensors["lm_head.weight"]
    assert isinstance(model, SharedTables)
    ids, few, hidden = torch.tensor([[7, 0], [263, 7]]), torch.tensor([263, 5, 5]), torch.randn(64)
    with torch.inference_mode():
        assert torch.equal(model.embed(ids), table[ids])
        assert torch.equal(model.head_rows(few), head[few])
        raw = model.raw_logits(hidden)
    torch.testing.assert_close(raw, head @ hidden, rtol=0, atol=1e-4)


def test_a_bias_of_the_head_is_not_in_its_rows(tmp_path: Path) -> None:
    """EGL-7, LIN-1."""
    folder = tiny_folder(tmp_path, "llama", tie_word_embeddings=False)
    edit_tensors(folder, lambda tensors: tensors | {"lm_head.bias": torch.full((264,), 0.5)})
    model, head = loaded(folder), load_file(folder / "model.safetensors")["lm_head.weight"]
    assert isinstance(model, SharedTables)
    few = torch.tensor([3, 200])
    torch.testing.assert_close(model.head_rows(few), head[few], rtol=0, atol=1e-6)


def test_facts_are_those_of_the_config(tmp_path: Path) -> None:
    """CON-1"""
    facts = loaded(tiny_folder(tmp_path, "llama", tie_word_embeddings=True)).facts
    assert (facts.vocab_size, facts.hidden_size, facts.layers) == (264, 64, 2)
    assert facts.max_context == 512
    tensors = (tmp_path / "model.safetensors").stat().st_size
    assert tensors - 4096 < facts.weight_bytes < tensors  # the rest is the file's header
