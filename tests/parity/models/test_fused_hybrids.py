"""Whole hybrids in one native call: bits at every width, what rounds leave, and failures."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fixtures.checkpoints import CPU, chunked_logits, logits, padded
from fixtures.hybrid import CONTEXT, VOCABULARY, loaded_hybrid
from fixtures.quantised import quantised_hybrid
from fixtures.tiny import Family
from fixtures.toy import ListSink
from forerun.cache.kv import KVCache
from forerun.cache.recurrent import RecurrentCache
from forerun.contract.batch import Batch
from forerun.contract.cache import AttentionCache
from forerun.contract.model import CacheOptions, Caches, TappedModel, TargetModel
from forerun.contract.recurrence import RecurrentState, RecurrentUpdate, RecurrentWrite
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.engine.loaded import LoadedModel
from forerun.kernels.decoder_layer.native import AttentionLayer, DeltaLayer, NativeLayers
from forerun.sampling.options import SamplingOptions

HYBRIDS: tuple[Family, ...] = ("qwen3_5", "qwen3_5_moe", "qwen3_next")
TOKENS = [(37 * place + place * place) % 256 for place in range(75)]
DENSE: Family = "qwen3_5"
PURE = {"num_hidden_layers": 2, "layer_types": ["linear_attention"] * 2}  # no keys and values


def native_hybrid(
    path: Path,
    family: Family = DENSE,
    dtype: torch.dtype = torch.float32,
    *,
    threads: int = 2,
    **config: object,
) -> TargetModel:
    checkpoint = quantised_hybrid(path, family, mtp=False, **config)
    model = checkpoint.load(dtype, threads=threads)
    assert model.facts.own_threads, "its layers run in one call"
    return model


def fresh(model: TargetModel) -> Caches:
    return model.new_caches(CacheOptions(context=256, slack=16))


@torch.inference_mode()
def step(model: TargetModel, caches: Caches | None, tokens: Sequence[int], start: int) -> Tensor:
    """[n, vocab] logits of one forward."""
    return model.unembed(model.forward(Batch.of(tokens, start, CPU), caches).hidden)[0]


def recurrent(caches: Caches) -> Iterator[RecurrentCache]:
    return (cache for cache in caches if isinstance(cache, RecurrentCache))


@torch.inference_mode()
def states(caches: Caches) -> list[Tensor]:
    """All that recurrent layers hold."""
    held = [cache.get(1, torch.float32) for cache in recurrent(caches)]
    return [part.clone() for state in held for part in (state.conv, state.delta)]


def same(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


class Captured:
    """The states at offsets that a forward reaches, as a round takes them."""

    def __init__(self, caches: Caches, offsets: Sequence[int]) -> None:
        self._caches, self._offsets = caches, list(offsets)
        for cache in caches:
            assert cache is not None
            cache.prepare_snapshots(offsets)

    def take(self) -> None:
        self._taken = [cache.take_snapshots() for cache in self._caches if cache is not None]

    def restore(self, offset: int) -> None:
        at = self._offsets.index(offset)
        for cache, taken in zip(self._caches, self._taken, strict=True):
            assert cache is not None
            assert cache.restore(None, offset) or cache.restore(taken[at], offset)
            for snapshot in taken:
                if snapshot is not None:
                    snapshot.close()


@pytest.mark.parametrize("family", HYBRIDS)
def test_rounds_leave_what_single_steps_leave(tmp_path: Path, family: Family) -> None:
    """WID-4, WID-7, T16, 01 REC-5, REW-1: of every width, from wherever the one before it was cut.

    What stands of a round is folded in by the next one, whose rows see it, or by `get`.
    """
    model, before = native_hybrid(tmp_path, family), 21
    alone = chunked_logits(model, TOKENS, [1])
    caches, plain = fresh(model), fresh(model)
    step(model, caches, TOKENS[:before], 0)
    step(model, plain, TOKENS[:before], 0)
    offset, random = before, torch.Generator().manual_seed(3)
    for width in (2, 16, 1, 7, 3, 16, 2, 5, 11, 4):
        captured = Captured(caches, range(offset + 1, offset + width))
        rows = step(model, caches, TOKENS[offset : offset + width], offset)
        captured.take()
        assert torch.equal(rows, alone[offset : offset + width]), (width, offset)
        stand = 1 + int(torch.randint(width, (1,), generator=random)) if width > 1 else width
        if stand < width:
            captured.restore(offset + stand)
        for place in range(offset, offset + stand):
            step(model, plain, TOKENS[place : place + 1], place)
        offset += stand
        if width % 2:
            assert same(states(caches), states(plain))
    assert same(states(caches), states(plain))


@torch.inference_mode()
def test_a_step_shows_taps_in_the_middle(tmp_path: Path) -> None:
    """03 EGL-3: the streams of single tokens are those of the whole, bit for bit."""
    model = native_hybrid(tmp_path)
    assert isinstance(model, TappedModel)
    model.tap([1, 3, 2])
    whole = model.forward(Batch.of(TOKENS[:12], 0, CPU), None).conditioning
    caches = fresh(model)
    for place in range(12):
        batch = Batch.of(TOKENS[place : place + 1], place, CPU)
        assert torch.equal(model.forward(batch, caches).conditioning, whole[:, place : place + 1])


@torch.inference_mode()
@pytest.mark.parametrize("family", HYBRIDS)
def test_rows_of_a_batch_do_not_see_each_other(tmp_path: Path, family: Family) -> None:
    """CON-8, MSK-9, WID-1: without caches, each row from a start of its own, one of them padded."""
    model = native_hybrid(tmp_path, family)
    rows, starts = (TOKENS[:13], TOKENS[20:24], ()), (0, 5, 0)
    hidden = model.forward(padded(rows, starts), None).hidden
    for row, tokens, start in zip(hidden[:2], rows, starts, strict=False):
        alone = model.forward(Batch.of(tokens, start, CPU), None).hidden[0]
        assert torch.equal(row[: len(tokens)], alone)


@torch.inference_mode()
@pytest.mark.parametrize("announced", [6, 20])  # at most a round, and more
@pytest.mark.parametrize("splits", [(), (21, 22), (22, 25), (25,)])
def test_writes_that_the_driver_has_begun_are_used_and_left_open(
    tmp_path: Path, splits: tuple[int, ...], announced: int
) -> None:
    """01 WRT-6, CNV-2, REC-4: also for a row shorter than it announced; of states and of inputs."""
    model = native_hybrid(tmp_path)
    caches, brought = fresh(model), fresh(model)
    for one in (caches, brought):
        step(model, one, TOKENS[:20], 0)
    for cache in brought:
        assert cache is not None
        cache.prepare_snapshots(splits)
    writes = [cache.begin_write(announced) for cache in brought]  # type: ignore[union-attr]
    ids = torch.tensor([[*TOKENS[20:24], *[0] * (announced - 4)]])
    batch = Batch(ids, (20,), (4,), *batch_tensors(20, 4), writes=writes)
    hidden = model.forward(batch, brought).hidden[0, :4]
    for cache, write in zip(brought, writes, strict=True):
        assert cache is not None
        assert cache.offset == 20
        if isinstance(write, RecurrentWrite):
            assert isinstance(cache, RecurrentCache)
            stands_still(write, 4)
            cache.put(write.update.of(4))
        else:
            assert isinstance(cache, AttentionCache)
            cache.end_write(4)
        cache.take_snapshots()
    assert torch.equal(model.unembed(hidden), step(model, caches, TOKENS[20:24], 20))
    assert torch.equal(
        step(model, brought, TOKENS[24:40], 24), step(model, caches, TOKENS[24:40], 24)
    )


def stands_still(write: RecurrentWrite, length: int) -> None:
    """At the splits that a row of this length does not reach."""
    end = write.update.end
    for split, state in zip(write.splits, write.update.splits, strict=False):
        if split >= length:
            assert end is not None
            assert same([state.conv, state.delta], [end.conv, end.delta])


def batch_tensors(start: int, length: int) -> tuple[Tensor, Tensor]:
    return torch.tensor([start]), torch.tensor([length])


@torch.inference_mode()
def test_states_of_several_sequences_are_written_row_by_row(tmp_path: Path) -> None:
    """CON-8, CNV-2, 01 REC-4: a joined write of four; a row that has ended before a split or at
    it, or brings nothing, stands still there."""
    model = native_hybrid(tmp_path, **PURE)
    histories = (TOKENS[:9], TOKENS[30:44], TOKENS[60:67], TOKENS[50:53])
    news = (TOKENS[9:14], TOKENS[44:46], TOKENS[67:71], ())
    caches = [fresh(model) for _ in histories]
    for one, tokens in zip(caches, histories, strict=True):
        step(model, one, tokens, 0)
    splits, writes = (1, 4), []
    for layers in zip(*map(recurrent, caches), strict=True):
        held = [cache.get(1, torch.float32) for cache in layers]
        before = RecurrentState(
            torch.cat([state.conv for state in held]), torch.cat([state.delta for state in held])
        )
        due = [
            RecurrentState(torch.full_like(before.conv, torch.nan), torch.empty_like(before.delta))
            for _ in range(3)
        ]
        update = RecurrentUpdate(due[-1], (5, 2, 4, 0), tuple(due[:-1]))
        writes.append(RecurrentWrite(before, None, None, splits, update))
    starts = tuple(map(len, histories))
    hidden = model.forward(padded(news, starts, writes=writes), caches[0]).hidden
    for row, (one, new, start) in enumerate(zip(caches, news, starts, strict=True)):
        made, done = [], 0
        for at in (1, 4, 5):
            for place in range(done, min(at, len(new))):
                made.append(step(model, one, new[place : place + 1], start + place))
            done = min(at, len(new))
            for cache, write in zip(recurrent(one), writes, strict=True):
                found = (*write.update.splits, write.update.end)[(1, 4, 5).index(at)]
                state = cache.get(1, torch.float32)
                assert found is not None
                assert torch.equal(found.conv[row], state.conv[0]), (row, at)
                assert torch.equal(found.delta[row], state.delta[0]), (row, at)
        if made:
            assert torch.equal(model.unembed(hidden[row, : len(new)]), torch.cat(made))


@torch.inference_mode()
@pytest.mark.parametrize("rounds", [False, True])
def test_no_new_rows_fold_what_is_pending(tmp_path: Path, rounds: bool) -> None:
    """01 REC-5, CNV-2: a driver's row without tokens leaves the state after the last round; in a
    round, which leaves no state at its end, where it is told to."""
    model = native_hybrid(tmp_path, **PURE)
    caches, plain = fresh(model), fresh(model)
    for one in (caches, plain):
        step(model, one, TOKENS[:9], 0)
    captured = Captured(caches, range(10, 13))
    step(model, caches, TOKENS[9:13], 9)
    captured.take()
    captured.restore(11)
    step(model, plain, TOKENS[9:11], 9)
    if rounds:
        Captured(caches, [12])
    writes = [cache.begin_write(3) for cache in recurrent(caches)]
    assert all(write.pending is not None for write in writes)
    ids = torch.zeros(1, 3, dtype=torch.int64)
    model.forward(Batch(ids, (11,), (0,), *batch_tensors(11, 0), writes=writes), caches)
    want = states(plain)
    for at, write in enumerate(writes):
        end, folded, (conv, delta) = write.update.end, write.folded, want[2 * at : 2 * at + 2]
        if rounds:
            assert end is None
            assert folded is not None
            assert torch.equal(folded, delta)
        else:
            assert end is not None
            assert same([end.conv, end.delta], [conv, delta])


def test_a_forward_that_breaks_off_leaves_no_write_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """01 WRT-2, REC-4, CON-8: the caches hold what they held; the next forward is as if nothing
    was, also where inputs are pending."""
    model = native_hybrid(tmp_path)
    caches = fresh(model)
    step(model, caches, TOKENS[:17], 0)
    captured = Captured(caches, range(18, 22))
    step(model, caches, TOKENS[17:22], 17)
    captured.take()
    captured.restore(20)

    def breaking(*_: object, **__: object) -> None:
        raise MemoryError

    broken = (
        NativeLayers.run,
        AttentionLayer.place,
        DeltaLayer.place,
        RecurrentCache.begin_write,
        RecurrentCache._copies,  # so that each `put` fails, of no tokens too
    )
    for function in broken:
        with monkeypatch.context() as patch:
            patch.setattr(f"{function.__module__}.{function.__qualname__}", breaking)
            with pytest.raises(MemoryError):
                step(model, caches, TOKENS[20:30], 20)
        assert all(cache is not None and cache.offset == 20 for cache in caches)
    assert torch.equal(step(model, caches, TOKENS[20:30], 20), logits(model, TOKENS[:30])[20:])


class Breaking:
    """What a method does but for one call of it, counted from 0, which there is no memory for."""

    def __init__(self, patch: pytest.MonkeyPatch, method: Callable[..., object], which: int):
        self._left = which

        def called(*given: object, **named: object) -> object:
            self._left -= 1
            if self._left == -1:
                raise MemoryError("of the one call")
            return method(*given, **named)

        patch.setattr(f"{method.__module__}.{method.__qualname__}", called)

    @property
    def broke(self) -> bool:
        return self._left < 0


# what ends a write of a recurrent layer and of an attention layer runs them, if captures are due
ENDS = pytest.mark.parametrize("method", [RecurrentCache._copies, KVCache._range])


@ENDS
@pytest.mark.parametrize("which", [0, 1])
def test_a_write_that_cannot_be_ended_leaves_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Callable[..., object], which: int
) -> None:
    """01 WRT-2, REC-4: layers after the one that failed hold what they held. All can be freed."""
    model = native_hybrid(tmp_path)
    caches = fresh(model)
    step(model, caches, TOKENS[:17], 0)
    Captured(caches, [30])
    with monkeypatch.context() as patch:
        broken = Breaking(patch, method, which)
        with pytest.raises(MemoryError, match="of the one call"):
            step(model, caches, TOKENS[17:37], 17)
    assert broken.broke
    offsets = [cache.offset for cache in caches if cache is not None]
    assert offsets == sorted(offsets, reverse=True), "those before it have ended theirs"
    assert offsets[-1] == (17 if (method, which) != (KVCache._range, 1) else 37)
    for cache in caches:
        assert cache is not None
        cache.free()
    assert torch.equal(step(model, caches, TOKENS[:30], 0), logits(model, TOKENS[:30]))


def answer(engine: LoadedModel) -> Sequence[int]:
    sink = ListSink()
    job = Job(tuple(range(1, 40)), frozenset(), SamplingOptions(temperature=0.0), 6, sink)
    with torch.inference_mode():
        generate(engine, job)
    assert sink.error is None
    return sink.tokens


@ENDS
@pytest.mark.parametrize("which", range(3))
def test_the_engine_answers_the_request_after_one_whose_write_could_not_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Callable[..., object], which: int
) -> None:
    """01 WRT-2, 05 REQ-3: whatever layer it was of, the next answer is a cold one."""
    config = {"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT}
    no_ids = {"eos_token_id": None, "pad_token_id": None}
    model = quantised_hybrid(tmp_path, DENSE, **config, **no_ids).load()
    engine = loaded_hybrid(model)  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        broken = Breaking(patch, method, which)
        with pytest.raises(MemoryError, match="of the one call"):
            answer(engine)
    assert broken.broke
    assert answer(engine) == answer(loaded_hybrid(model))  # type: ignore[arg-type]
