"""Which mask and which kernel a forward gets, and what it may cost."""

from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from forerun.cache.kv import KVCache
from forerun.cache.rotating import RotatingCache
from forerun.cache.rows import RowShape
from forerun.contract.batch import Batch
from forerun.contract.history import History
from forerun.contract.mask import CAUSAL, NONE, Mask, Rect, relax
from forerun.contract.recurrence import RecurrentState, RecurrentUpdate, RecurrentWrite
from forerun.nn.attention import Attention, attend, resolve
from forerun.nn.shared_heads import Plan, apart, folded, grouped, tiled

CPU = torch.device("cpu")
SCALE = 0.4
FLASH, MATH = (
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_attention_math",
)


def history(live, **fields):
    return History(torch.randn(1, 2, live, 8), torch.randn(1, 2, live, 8), live, **fields)


def batch(width, start, **fields):
    made = Batch.of(range(width), start, CPU)
    return Batch(
        **{f: getattr(made, f) for f in made.__slots__ if f not in fields and f != "memo"}, **fields
    )


def padded(width, lengths, starts=None):
    """Right-padded rows."""
    starts = starts or (0,) * len(lengths)
    return Batch(
        input_ids=torch.zeros(len(lengths), width, dtype=torch.int64),
        starts=tuple(starts),
        lengths=tuple(lengths),
        start_offsets=torch.tensor(starts),
        valid_lengths=torch.tensor(lengths),
    )


def seen(plan):
    return plan.bias == 0


def naive(queries, keys, values, shown):
    groups = queries.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(groups, 1).double() for x in (keys, values))
    scores = queries.double() @ keys.transpose(-1, -2) * SCALE
    return (scores.masked_fill(~shown, float("-inf")).softmax(-1) @ values).float()


def kernels(work):
    """Names of the operations that `work` runs, and bytes of the largest allocation."""
    with (
        torch.inference_mode(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record,
    ):
        work()
    events = record.events()
    return {e.name for e in events}, max(e.cpu_memory_usage for e in events)


@pytest.mark.parametrize(
    ("width", "start", "live", "mask", "plan"),
    [
        (3, 4, 7, NONE, Plan()),
        (1, 6, 7, CAUSAL, Plan()),
        (1, 6, 7, relax(CAUSAL, [Rect(0, 6, 7, 7, 9)]), Plan()),
        (7, 0, 7, CAUSAL, Plan(causal=True)),
    ],
    ids=["none", "one query", "one query, rectangle", "square"],
)
def test_no_mask_is_made_where_none_is_needed(width, start, live, mask, plan):
    """MSK-6."""
    assert resolve(history(live), batch(width, start), mask, torch.float32) == plan


def test_the_causal_flag_is_for_squares_from_the_start_alone():
    """MSK-6: the kernel aligns it top-left, so that behind rows it would show too little."""
    later = resolve(history(7), batch(3, 4), CAUSAL, torch.float32)
    assert not later.causal
    assert torch.equal(seen(later)[0, 0], torch.ones(3, 7, dtype=torch.bool).tril(4))
    relaxed = relax(CAUSAL, [Rect(0, 0, 3, 0, 3)])
    plan = resolve(history(5), batch(5, 0), relaxed, torch.float32)
    assert not plan.causal
    assert seen(plan)[0, 0, 0].tolist() == [True, True, True, False, False]


def test_one_query_may_still_need_a_mask():
    """MSK-6, MSK-5: a tensor blocks columns, and a later column is not in the past."""
    tensor = torch.tensor([True, False, True]).view(1, 1, 1, 3)
    plan = resolve(history(3), batch(1, 2), Mask(causal=True, tensor=tensor), torch.float32)
    assert seen(plan).flatten().tolist() == [True, False, True]
    plan = resolve(history(3), batch(1, 1), CAUSAL, torch.float32)
    assert seen(plan).flatten().tolist() == [True, True, False]


def test_a_window_masks_what_is_not_causal_too():
    """MSK-5, RAP-3: the cache's applier comes after the model's mask."""
    cache = RotatingCache(RowShape(1, 8, 8, torch.float32, CPU), window=3, slack=4)
    write = cache.begin_write(3)
    plan = resolve(write.history, batch(3, 0), CAUSAL, torch.float32)
    assert plan.causal  # within the window it adds nothing to causality
    plan = resolve(write.history, batch(3, 0), NONE, torch.float32)
    assert torch.equal(seen(plan)[0, 0], torch.ones(3, 3, dtype=torch.bool).tril())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sibling_layers_share_one_mask(dtype):
    """MSK-7, MSK-1: in the dtype of the queries, made once a batch."""
    one = batch(3, 4)
    bias = resolve(history(7), one, CAUSAL, dtype).bias
    assert bias.dtype == dtype
    assert resolve(history(7), one, CAUSAL, dtype).bias is bias
    assert resolve(history(7), batch(3, 4), CAUSAL, dtype).bias is not bias


def test_whatever_a_mask_is_made_from_is_in_its_key():
    """MSK-7."""
    one = batch(3, 4)
    cache = RotatingCache(RowShape(2, 8, 8, torch.float32, CPU), window=3, slack=4)
    for _ in range(2):
        write = cache.begin_write(2)
        cache.end_write(2)
    write = cache.begin_write(3)
    tensor = torch.ones(1, 1, 3, 9, dtype=torch.bool)
    histories = [
        history(7),
        history(8),
        history(7, oldest=1),
        history(7, lengths=torch.tensor([6])),
        history(7, positions=torch.arange(7).flip(0)[None]),
        write.history,
    ]
    masks = [
        CAUSAL,
        relax(CAUSAL, [Rect(0, 4, 6, 4, 6)]),
        Mask(causal=True, tensor=tensor),
        Mask(causal=True, tensor=tensor.clone()),
    ]
    plans = [resolve(h, one, CAUSAL, torch.float32).bias for h in histories]
    plans += [resolve(history(7), one, m, torch.float32).bias for m in masks[1:]]
    plans.append(resolve(history(7), one, CAUSAL, torch.bfloat16).bias)
    assert len({id(plan) for plan in plans}) == len(plans)
    memo = {id(value) for value in one.memo.values()}
    for _ in range(20):  # tensors of dead histories do not lend their ids to others
        resolve(history(7, lengths=torch.tensor([5])), one, CAUSAL, torch.float32)
    assert len(one.memo) == len(memo) + 20


def test_keys_beyond_a_row_are_hidden_and_padded_queries_see_one():
    """MSK-5, MSK-9, MSK-10: rows that start elsewhere, shorter than the batch is wide."""
    lengths = torch.tensor([3, 5])
    rows = padded(3, (1, 3), starts=(2, 2))
    plan = resolve(history(5, lengths=lengths), rows, NONE, torch.float32)
    shown = seen(plan)[:, 0].tolist()
    only_first = [True, False, False, False, False]
    assert shown[0] == [[True, True, True, False, False], only_first, only_first]
    assert shown[1] == [[True] * 5] * 3
    full = padded(3, (3, 3), starts=(2, 2))
    assert resolve(history(5), full, NONE, torch.float32).bias is None


def test_a_padded_row_counts_its_own_length():
    """MSK-9, WRT-2: what it stores beyond is written over, and its results are whole."""
    queries, keys, values = (
        torch.randn(1, 4, 6, 8),
        torch.randn(1, 2, 6, 8),
        torch.randn(1, 2, 6, 8),
    )
    cache = KVCache(RowShape(2, 8, 8, torch.float32, CPU), 32)
    attention = Attention(0, SCALE)
    parts = []
    for start, width, length in ((0, 4, 2), (2, 5, 4)):
        fill = [
            torch.cat((x[:, :, start : start + length], x[:, :, : width - length] * 9), 2)
            for x in (queries, keys, values)
        ]
        made = padded(width, (length,), starts=(start,))
        parts.append(attention(*fill, made, cache=cache)[:, :, :length])
        assert cache.offset == start + length
    shown = torch.ones(6, 6, dtype=torch.bool).tril()
    assert torch.allclose(torch.cat(parts, 2), naive(queries, keys, values, shown), atol=1e-5)


def test_rows_of_a_batch_without_caches_do_not_depend_on_each_other():
    """CON-9, MSK-9, MSK-10: each starts where it starts, and equals itself alone."""
    queries, keys, values = (
        torch.randn(2, 4, 5, 8),
        torch.randn(2, 2, 5, 8),
        torch.randn(2, 2, 5, 8),
    )
    attention = Attention(0, SCALE, window=3)
    both = attention(queries, keys, values, padded(5, (5, 3), starts=(0, 7)), cache=None)
    assert both.isfinite().all()
    for row, length in ((0, 5), (1, 3)):
        parts = [x[row : row + 1, :, :length] for x in (queries, keys, values)]
        alone = attention(*parts, padded(length, (length,), starts=(0,)), cache=None)
        assert torch.allclose(both[row, :, :length], alone[0], atol=1e-5)


def test_rows_of_one_cache_advance_in_step():
    """MSK-10: several sequences of one length; rows of different lengths need a cache that can."""
    parts = [torch.randn(2, heads, 5, 8) for heads in (4, 2, 2)]
    both = KVCache(RowShape(2, 8, 8, torch.float32, CPU, batch=2), 32)
    alone = [KVCache(RowShape(2, 8, 8, torch.float32, CPU), 32) for _ in range(2)]
    attention = Attention(0, SCALE)
    for start, end in ((0, 3), (3, 4), (4, 5)):
        rows = [part[:, :, start:end] for part in parts]
        made = padded(end - start, (end - start,) * 2, starts=(start,) * 2)
        attended = attention(*rows, made, cache=both)
        for row, cache in enumerate(alone):
            single = [part[row : row + 1] for part in rows]
            expected = attention(*single, batch(end - start, start), cache=cache)
            assert torch.allclose(attended[row], expected[0], atol=1e-6)
    with pytest.raises(AssertionError, match="in step"):
        attention(*[part[:, :, :2] for part in parts], padded(2, (1, 2), (5, 5)), cache=both)


def test_positions_in_any_order_are_masked_by_what_they_say():
    """WRT-7, MSK-6: one query too, unless an applier knows that it sees them all."""
    held = history(4, positions=torch.tensor([[2, 5, 0, 4]]))
    plan = resolve(held, batch(1, 4), CAUSAL, torch.float32)
    assert seen(plan).flatten().tolist() == [True, False, True, True]


def test_a_failed_forward_ends_its_write():
    """WRT-2: with nothing counted."""
    cache = KVCache(RowShape(2, 8, 8, torch.float32, CPU), 32)
    rows = torch.randn(1, 2, 3, 8)
    attention = Attention(0, SCALE)
    attention(rows, rows, rows, batch(3, 0), cache=cache)
    wrong = torch.randn(1, 2, 3, 9)
    with pytest.raises(RuntimeError):
        attention(wrong, rows, rows, batch(3, 3), cache=cache)
    assert cache.offset == 3
    assert cache.restore(None, 2)  # no write stayed open


def test_writes_that_a_batch_brings_are_only_stored_into():
    """WRT-6, REC-4, 06 CON-8: whoever built the batch began them and ends them."""
    cache = KVCache(RowShape(2, 8, 8, torch.float32, CPU), 32)
    rows = torch.randn(1, 2, 3, 8)
    write = cache.begin_write(3)
    state = RecurrentState(torch.zeros(1, 3, 8), torch.zeros(1, 2, 8, 8))
    recurrent = RecurrentWrite(state, None, None, (), RecurrentUpdate(state, (3,)))
    brought = batch(3, 0, writes=(None, write, recurrent))
    attended = Attention(1, SCALE)(rows, rows, rows, brought, cache=cache)
    for other in (0, 2):  # nobody's, and a recurrent layer's
        with pytest.raises(AssertionError, match=f"layer {other}"):
            Attention(other, SCALE)(rows, rows, rows, brought, cache=cache)
    cache.end_write(2)
    assert cache.offset == 2
    assert torch.allclose(attended, naive(rows, rows, rows, torch.ones(3, 3).tril().bool()))
    assert torch.equal(cache.view().keys, rows[:, :, :2])


def test_values_may_be_the_first_features_of_the_keys():
    """MSK-8: absorbed latent attention keeps no values of its own."""
    keys, queries = torch.randn(1, 1, 7, 12), torch.randn(1, 4, 3, 12)
    latent = History(keys, keys.new_empty(1, 1, 7, 0), 7)
    attended = attend(queries, latent, batch(3, 4), scale=SCALE, value_dim=8)
    shown = torch.ones(3, 7, dtype=torch.bool).tril(4)
    assert torch.allclose(attended, naive(queries, keys, keys[..., :8], shown), atol=1e-6)


def test_attention_by_hand_may_read_the_composed_mask():
    """MSK-8."""
    held, queries, made = history(7), torch.randn(1, 2, 3, 8), batch(3, 4)
    bias = resolve(held, made, CAUSAL, torch.float32).bias
    by_hand = (queries @ held.keys.transpose(-1, -2) * SCALE + bias).softmax(-1) @ held.values
    assert torch.allclose(attend(queries, held, made, scale=SCALE), by_hand, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (6, 1)], ids=str)
@pytest.mark.parametrize("width", [1, 2, 16, 17, 40])
def test_every_width_takes_the_fused_kernel(width, heads, dtype):
    """MSK-6, MSK-1: and gives what plain arithmetic gives, NaN beyond the live rows or not."""
    query, kv = heads
    live = width + 23
    keys, values = torch.full((2, 1, kv, live + 9, 16), float("nan"), dtype=dtype)
    rows = torch.randn(2, 1, kv, live, 16).to(dtype)
    keys[:, :, :live], values[:, :, :live] = rows
    queries = torch.randn(1, width, query, 16).to(dtype).transpose(1, 2)
    held, made = History(keys, values, live), batch(width, live - width)
    results = []
    names, _ = kernels(lambda: results.append(attend(queries, held, made, scale=SCALE)))
    assert FLASH in names
    assert MATH not in names
    shown = torch.ones(width, live, dtype=torch.bool).tril(live - width)
    expected = naive(queries, *rows, shown)
    # bf16 keeps 8 bits of the weights and of the result
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7 * float(expected.abs().max())
    assert (results[0] - expected).abs().max() <= tolerance


@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (6, 1)], ids=str)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("masked", ["no mask", "one mask", "a mask a row", "causal"])
def test_every_way_of_sharing_key_heads_gives_the_same(heads, rows, masked):
    """MSK-6: and takes the fused kernel, whichever the device needs."""
    query, kv = heads
    width, live = (5, 5) if masked == "causal" else (5, 9)
    queries = torch.randn(rows, width, query, 8).transpose(1, 2)
    keys, values = torch.randn(2, rows, kv, live + 3, 8)[:, :, :, :live]
    shown = torch.ones(rows, 1, width, live, dtype=torch.bool)
    plan = Plan()
    if masked == "causal":
        shown, plan = shown.tril(), Plan(causal=True)
    elif masked != "no mask":
        shown = torch.rand(rows if masked == "a mask a row" else 1, 1, width, live) < 0.5
        shown[..., 0] = True
        plan = Plan(bias=torch.zeros(shown.shape).masked_fill(~shown, float("-inf")))
    expected = naive(queries, keys, values, shown)
    results = [
        grouped(queries, keys, values, plan, scale=SCALE),
        apart(queries, keys, values, plan, scale=SCALE),
    ]
    if masked != "causal":
        results.append(folded(queries, keys, values, tiled(plan, query // kv), scale=SCALE))
    for result in results:
        assert torch.allclose(result, expected, atol=1e-5)
    names, _ = kernels(lambda: apart(queries, keys, values, plan, scale=SCALE))
    assert FLASH in names
    assert MATH not in names


@pytest.mark.parametrize("start", [0, 100])
def test_a_long_prefill_materialises_no_scores(start):
    """MSK-6, ACC-4: one mask for all heads at most, where scores are one matrix a head."""
    width, heads, kv = 2048, 12, 4
    cache = KVCache(RowShape(kv, 32, 32, torch.float32, CPU), 4096)
    cache.update(*torch.randn(2, 1, kv, start + 1, 32))
    cache.restore(None, start)
    queries, keys, values = (torch.randn(1, n, width, 32) for n in (heads, kv, kv))
    made = batch(width, start)
    names, largest = kernels(lambda: Attention(0, SCALE)(queries, keys, values, made, cache=cache))
    assert FLASH in names
    assert MATH not in names
    output, mask = queries.nbytes, width * (start + width) * 8  # int64 comparisons of positions
    assert largest <= output + mask < heads * width * (start + width) * 4


def test_peak_memory_of_a_long_prefill():
    """ACC-4: measured as the process grows, not as operations report."""
    width, heads = 2048, 32
    rows = [torch.randn(1, heads, width, 16) for _ in range(3)]
    attention, made = Attention(0, SCALE), batch(width, 0)
    attention(*[x[:, :, :32] for x in rows], batch(32, 0), cache=None)
    before = _peak_bytes(reset=True)
    attention(*rows, made, cache=None)
    scores = heads * width * width * 4  # 512 MiB
    assert _peak_bytes() - before < scores / 8


def _peak_bytes(reset=False):
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line
    )
    return int(line.split()[1]) * 1024
