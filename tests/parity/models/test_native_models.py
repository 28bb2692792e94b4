"""Whole models on the native layers and head: parity with references, and bits at every width."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from weakref import ref

import pytest
import torch
from torch import Tensor

from fixtures.checkpoints import CPU, chunked_logits, logits, padded, relative_error
from fixtures.quantised import Quantised, quantised
from fixtures.tiny import VOCABULARY, Family
from forerun.contract.batch import Batch
from forerun.contract.cache import AttentionCache
from forerun.contract.history import History, Write
from forerun.contract.model import CacheOptions, Caches, SharedTables, TappedModel, TargetModel
from forerun.kernels import select
from forerun.kernels.decoder_layer.native import AttentionLayer, NativeLayers

FAMILIES: tuple[Family, ...] = ("llama", "qwen3", "gemma3")
WINDOW = 8  # of tiny gemma3
TOKENS = [(37 * place + place * place) % 256 for place in range(75)]
ROUNDING = 1e-3  # of the logits: all that sixteen bits do to a tiny model


def fresh(model: TargetModel, context: int = 256) -> Caches:
    return model.new_caches(CacheOptions(context=context, slack=16))


@torch.inference_mode()
def step(model: TargetModel, caches: Caches | None, tokens: Sequence[int], start: int) -> Tensor:
    """[n, vocab] logits of one forward."""
    return model.unembed(model.forward(Batch.of(tokens, start, CPU), caches).hidden)[0]


def rewind(caches: Caches, target: int) -> None:
    for cache in caches:
        assert cache is not None
        assert cache.restore(None, target)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_native_model_computes_what_its_family_does(
    tmp_path: Path, family: Family, tied: bool, biased: bool
) -> None:
    """KER-1, LIN-1, LIN-6, LLA, QW3-1, GM3-4, GM3-5"""
    checkpoint = quantised(tmp_path, family, attention_bias=biased, tie_word_embeddings=tied)
    native, reference = checkpoint.load(), checkpoint.load(native=False)
    assert native.facts.own_threads
    assert not reference.facts.own_threads
    ours = logits(native, TOKENS)
    assert ours.dtype == torch.float32
    assert relative_error(ours, logits(reference, TOKENS)) <= ROUNDING
    assert relative_error(ours, logits(checkpoint.dense(), TOKENS)) <= ROUNDING


def test_global_scales_are_folded(tmp_path: Path) -> None:
    """LIN-4"""
    checkpoint = quantised(tmp_path, "qwen3", global_scale=0.7)
    native = checkpoint.load()
    assert native.facts.own_threads
    ours = logits(native, TOKENS)
    assert relative_error(ours, logits(checkpoint.load(native=False), TOKENS)) <= ROUNDING
    assert relative_error(ours, logits(checkpoint.dense(), TOKENS)) <= ROUNDING


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_of_any_size_give_equal_bits(
    tmp_path: Path, family: Family, dtype: torch.dtype
) -> None:
    """WID-1, WID-5, CON-9: also without caches, and past the window many times over."""
    model = quantised(tmp_path, family).load(dtype)
    whole = logits(model, TOKENS)
    for chunks in ([75], [1], [5], [16], [17], [3, 1, 40], [2 * WINDOW + 3]):
        assert torch.equal(chunked_logits(model, TOKENS, chunks), whole), chunks


def test_chunks_give_equal_bits_where_a_history_has_several_blocks(tmp_path: Path) -> None:
    """WID-2: partial results are of fixed positions, however many rows a window has let go."""
    model = quantised(tmp_path, "gemma3", sliding_window=150).load(torch.bfloat16)
    tokens = [token for place in range(6) for token in (*TOKENS, place)]
    whole = logits(model, tokens)
    for chunks in ([1], [16], [170, 3], [300, 7]):
        assert torch.equal(chunked_logits(model, tokens, chunks), whole), chunks


@pytest.mark.parametrize("family", FAMILIES)
def test_threads_change_no_bit(tmp_path: Path, family: Family) -> None:
    """WID-3"""
    checkpoint = quantised(tmp_path, family)
    assert torch.equal(
        logits(checkpoint.load(threads=1), TOKENS), logits(checkpoint.load(threads=3), TOKENS)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_is_the_same_at_every_place_of_every_width(tmp_path: Path, family: Family) -> None:
    """WID-1, WID-7, T16"""
    model = quantised(tmp_path, family).load(torch.bfloat16)
    caches, before = fresh(model), 21
    alone = chunked_logits(model, TOKENS[: before + 16], [1])
    step(model, caches, TOKENS[:before], 0)
    for width in range(1, 17):
        for start in range(before, before + 16 - width + 1):
            step(model, caches, TOKENS[before:start], before)
            rows = step(model, caches, TOKENS[start : start + width], start)
            assert torch.equal(rows, alone[start : start + width]), (width, start)
            rewind(caches, before)


@pytest.mark.parametrize("held", [WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3])
def test_decoding_goes_on_where_a_window_wraps(tmp_path: Path, held: int) -> None:
    """GM3-2, 01 ROT-7"""
    model = quantised(tmp_path, "gemma3").load()
    whole, caches = logits(model, TOKENS), fresh(model)
    assert torch.equal(step(model, caches, TOKENS[:held], 0), whole[:held])
    for place in range(held, len(TOKENS)):
        assert torch.equal(step(model, caches, TOKENS[place : place + 1], place)[0], whole[place])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_restored_cache_gives_the_bits_it_gave(tmp_path: Path, family: Family) -> None:
    """01 CTR: from live state, and from a snapshot after everything else was dropped."""
    model = quantised(tmp_path, family).load()
    caches, at = fresh(model), 30
    step(model, caches, TOKENS[:at], 0)
    snapshots = [cache.snapshot(0) for cache in caches if cache is not None]
    first = step(model, caches, TOKENS[at : at + 9], at)
    rewind(caches, at)
    assert torch.equal(step(model, caches, TOKENS[at : at + 9], at), first)
    for cache, snapshot in zip(caches, snapshots, strict=True):
        assert cache is not None
        cache.free()
        assert cache.restore(snapshot, at)
    assert torch.equal(step(model, caches, TOKENS[at : at + 9], at), first)


@pytest.mark.parametrize("family", FAMILIES)
def test_conversations_may_take_turns(tmp_path: Path, family: Family) -> None:
    """01 CTR law 8: layers remember where a cache's rows are, and notice another's or a new one.

    What they remember keeps no buffer alive.
    """
    model = quantised(tmp_path, family).load()
    whole, other = logits(model, TOKENS[:40]), logits(model, TOKENS[40:])
    one, two = fresh(model), fresh(model)
    for place in range(20):
        assert torch.equal(step(model, one, TOKENS[place : place + 1], place)[0], whole[place])
        here = slice(40 + place, 41 + place)
        assert torch.equal(step(model, two, TOKENS[here], place)[0], other[place])
    step(model, one, TOKENS[20:21], 20)
    buffers = []
    for cache in one:
        assert isinstance(cache, AttentionCache)
        buffers.append(ref(cache.begin_write(1).keys))
        cache.end_write(0)
        cache.free()
    assert all(buffer() is None for buffer in buffers)
    assert torch.equal(step(model, one, TOKENS[:1], 0)[0], whole[0])


@torch.inference_mode()
def test_a_step_shows_taps_in_the_middle(tmp_path: Path) -> None:
    """03 EGL-3: the streams of single tokens are those of the whole, bit for bit."""
    model = quantised(tmp_path, "gemma3").load()
    assert isinstance(model, TappedModel)
    model.tap([1, 3, 2])
    whole = model.forward(Batch.of(TOKENS[:12], 0, CPU), None).conditioning
    caches = fresh(model)
    for place in range(12):
        batch = Batch.of(TOKENS[place : place + 1], place, CPU)
        assert torch.equal(model.forward(batch, caches).conditioning, whole[:, place : place + 1])


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_batch_do_not_see_each_other(tmp_path: Path, family: Family) -> None:
    """CON-8, MSK-9, WID-1: without caches, each row from a start of its own, one of them padded."""
    model = quantised(tmp_path, family).load()
    rows, starts = (TOKENS[:13], TOKENS[20:24]), (0, 5)
    hidden = model.forward(padded(rows, starts), None).hidden
    assert torch.isfinite(hidden).all()
    for row, tokens, start in zip(hidden, rows, starts, strict=True):
        alone = model.forward(Batch.of(tokens, start, CPU), None).hidden[0]
        assert torch.equal(row[: len(tokens)], alone)


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
def test_writes_that_the_driver_has_begun_are_used_and_left_open(
    tmp_path: Path, family: Family
) -> None:
    """01 WRT-6: the driver begins and ends, also for a row shorter than it announced."""
    model = quantised(tmp_path, family).load()
    caches, brought = fresh(model), fresh(model)
    for one in (caches, brought):
        step(model, one, TOKENS[:20], 0)
    writes = [cache.begin_write(6) for cache in brought if isinstance(cache, AttentionCache)]
    ids = torch.tensor([[*TOKENS[20:24], 0, 0]])
    batch = Batch(ids, (20,), (4,), torch.tensor([20]), torch.tensor([4]), writes=writes)
    hidden = model.forward(batch, brought).hidden[0, :4]
    for cache in brought:
        assert isinstance(cache, AttentionCache)
        assert cache.offset == 20
        cache.end_write(4)
    assert torch.equal(model.unembed(hidden), step(model, caches, TOKENS[20:24], 20))
    assert torch.equal(
        step(model, brought, TOKENS[24:40], 24), step(model, caches, TOKENS[24:40], 24)
    )


@torch.inference_mode()
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_rows_of_several_sequences_go_to_their_indices(tmp_path: Path, family: Family) -> None:
    """01 WRT-1: one joined write of two sequences that hold different numbers of tokens."""
    model = quantised(tmp_path, family).load()
    histories, news = (TOKENS[:9], TOKENS[30:44]), (TOKENS[9:12], TOKENS[44:45])
    caches = [fresh(model) for _ in histories]
    for one, tokens in zip(caches, histories, strict=True):
        step(model, one, tokens, 0)
    lengths = torch.tensor([len(old) + len(new) for old, new in zip(histories, news, strict=True)])
    starts, width = tuple(map(len, histories)), 3
    index = torch.tensor(starts)[:, None] + torch.arange(width)
    writes = []
    for layers in zip(*caches, strict=True):
        views = [cache.view() for cache in layers if isinstance(cache, AttentionCache)]
        keys, values = (torch.zeros(2, 2, 32, 32) for _ in range(2))
        for row, view in enumerate(views):
            keys[row, :, : view.live], values[row, :, : view.live] = view.keys[0], view.values[0]
        history = History(keys, values, int(lengths.max()), lengths=lengths)
        writes.append(Write(keys, values, 0, history, index=index))
    hidden = model.forward(padded(news, starts, writes=writes), caches[0]).hidden
    for row, (one, new, start) in enumerate(zip(caches, news, starts, strict=True)):
        alone = step(model, one, new, start)
        assert torch.equal(model.unembed(hidden[row, : len(new)]), alone)
        for cache, write in zip(one, writes, strict=True):
            assert isinstance(cache, AttentionCache)
            live = start + len(new)
            assert torch.equal(write.keys[row, :, :live], cache.view().keys[0])
            assert torch.equal(write.values[row, :, :live], cache.view().values[0])
            assert write.keys.isfinite().all(), "rows of padding are stored too, as numbers"
            assert write.values.isfinite().all()


@torch.inference_mode()
def test_one_row_goes_to_its_indices(tmp_path: Path) -> None:
    """01 WRT-1: `index` says where, whatever `first_index` holds."""
    model = quantised(tmp_path, "llama").load()
    caches, old, new = fresh(model), 9, 4
    step(model, caches, TOKENS[:old], 0)
    writes = []
    for cache in caches:
        assert isinstance(cache, AttentionCache)
        view, (keys, values) = cache.view(), (torch.zeros(1, 2, 32, 32) for _ in range(2))
        keys[:, :, :old], values[:, :, :old] = view.keys, view.values
        index = torch.arange(old, old + new)
        writes.append(Write(keys, values, 0, History(keys, values, old + new), index=index))
    tokens = TOKENS[old : old + new]
    hidden = model.forward(padded([tokens], (old,), writes=writes), caches).hidden[0]
    assert torch.equal(model.unembed(hidden), step(model, caches, tokens, old))


def test_a_forward_that_breaks_off_leaves_no_write_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """01 WRT-2, CON-8: the caches hold what they held; the next forward is as if nothing was."""
    model = quantised(tmp_path, "gemma3").load()
    caches = fresh(model)
    step(model, caches, TOKENS[:20], 0)

    def breaking(*_: object, **__: object) -> None:
        raise MemoryError

    for broken in (NativeLayers.run, AttentionLayer.place):
        with monkeypatch.context() as patch:
            patch.setattr(f"forerun.kernels.decoder_layer.native.{broken.__qualname__}", breaking)
            with pytest.raises(MemoryError):
                step(model, caches, TOKENS[20:30], 20)
        assert all(cache is not None and cache.offset == 20 for cache in caches)
    assert torch.equal(step(model, caches, TOKENS[20:30], 20), logits(model, TOKENS[:30])[20:])


@torch.inference_mode()
def test_taps_and_tables_show_what_drafts_need(tmp_path: Path) -> None:
    """03 EGL-3, EGL-6, EGL-7: streams as they were when a layer was entered, tables unscaled."""
    checkpoint = quantised(tmp_path, "gemma3")
    model, dense = checkpoint.load(), checkpoint.dense()
    streams = []
    for one, caches in ((dense, None), (model, None), (model, fresh(model))):
        assert isinstance(one, TappedModel)
        one.tap([0, 2, 4])
        streams.append(one.forward(Batch.of(TOKENS, 0, CPU), caches).conditioning[0])
    theirs, ours, cached = streams
    assert torch.equal(ours, cached)
    for one_of_ours, one_of_theirs in zip(ours.chunk(3, -1), theirs.chunk(3, -1), strict=True):
        assert relative_error(one_of_ours, one_of_theirs) <= ROUNDING
    ids, hidden = torch.tensor([3, 263, 3]), torch.randn(2, 64)
    assert isinstance(model, SharedTables)
    assert isinstance(dense, SharedTables)
    torch.testing.assert_close(model.embed(ids), dense.embed(ids))
    assert relative_error(model.head_rows(ids), dense.head_rows(ids)) <= 1e-3
    assert relative_error(model.raw_logits(hidden), dense.raw_logits(hidden)) <= 1e-3


@torch.inference_mode()
def test_a_tied_table_is_held_once(tmp_path: Path) -> None:
    """LIN-5: vectors come from the head's own copy, exact, and never from beside it."""
    checkpoint = quantised(tmp_path / "tied", "llama", tie_word_embeddings=True)
    untied = quantised(tmp_path / "untied", "llama", tie_word_embeddings=False).load()
    model, dense = checkpoint.load(), checkpoint.dense()
    assert model.facts.weight_bytes < untied.facts.weight_bytes
    assert isinstance(model, SharedTables)
    assert isinstance(dense, SharedTables)
    ids = torch.tensor([[0, 263], [5, 5]])
    for some in (ids, ids[:, 0]):  # which is not contiguous
        torch.testing.assert_close(model.embed(some), dense.embed(some), rtol=1e-6, atol=1e-6)
    for wrong in (VOCABULARY, -1):
        with pytest.raises(IndexError):
            model.embed(torch.tensor([3, wrong]))


def refused_for(caplog: pytest.LogCaptureFixture, load: Callable[[], TargetModel]) -> str:
    """What the log says of a model that separate operations serve."""
    select._log_once.cache_clear()
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="forerun"):
        load()
    found = [record.getMessage() for record in caplog.records]
    (line,) = [message for message in found if "layers run as separate operations" in message]
    return line


def test_what_the_kernels_cannot_do_is_refused_at_load(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KER-1: all layers are native, or none; the log says why."""

    def made(name: str, **options: object) -> Quantised:
        return quantised(tmp_path / name, "llama", **options)  # type: ignore[arg-type]

    narrow = made("narrow", head_dim=24, num_attention_heads=4, hidden_size=96)
    assert "24 wide" in refused_for(caplog, narrow.load)
    mixed = made("mixed", kept=["layers.1.mlp.down_proj"])
    assert "not all weights are quantised" in refused_for(caplog, mixed.load)
    plain = made("plain")
    assert "switched off" in refused_for(caplog, lambda: plain.load(native=False))
    assert "float16" in refused_for(caplog, lambda: plain.load(torch.float16))
    monkeypatch.setattr("forerun.kernels.native.library.load", lambda: None)
    monkeypatch.setattr("forerun.kernels.native.library.why_not", lambda: "not built")
    assert "not built" in refused_for(caplog, plain.load)
    ours, theirs = logits(mixed.load(), TOKENS), logits(mixed.dense(), TOKENS)
    assert relative_error(ours, theirs) <= 1e-4


def test_where_layers_cannot_be_one_call_their_linears_are_native(tmp_path: Path) -> None:
    """KER-1: and the head; on threads of their own, as whole layers are."""
    narrow = quantised(
        tmp_path, "llama", head_dim=24, num_attention_heads=4, hidden_size=96, attention_bias=True
    )
    native, reference = narrow.load(), narrow.load(native=False)
    assert native.facts.own_threads
    assert not reference.facts.own_threads
    assert relative_error(logits(native, TOKENS), logits(reference, TOKENS)) <= ROUNDING
    mostly_dense = quantised(tmp_path / "dense", "llama", kept=["self_attn", "gate_proj", "up"])
    assert not mostly_dense.load().facts.own_threads
