"""Attention over any chunking, with any rewinds in between, is attention over the whole sequence.

The reference computes one query after the other with a written-out softmax in float64.
"""

import math
from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.cache.kv import KVCache
from forerun.cache.rotating import RotatingCache
from forerun.cache.rows import RowShape
from forerun.contract.batch import Batch
from forerun.contract.mask import CAUSAL, Rect, relax
from forerun.nn.attention import Attention

CPU = torch.device("cpu")
LENGTH = 48
SCALE = 0.3


@dataclass(frozen=True)
class Heads:
    kv: int
    groups: int
    dim: int

    def rows(self, seed):
        noise = torch.Generator().manual_seed(seed)
        queries = torch.randn(1, self.kv * self.groups, LENGTH, self.dim, generator=noise)
        keys = torch.randn(1, self.kv, LENGTH, self.dim, generator=noise)
        return queries, keys, torch.randn(1, self.kv, LENGTH, self.dim, generator=noise)


def dense(queries, keys, values, sees):
    """Query by query, over the positions that `sees(query, position)` says."""
    groups = queries.shape[1] // keys.shape[1]
    attended = torch.zeros_like(queries, dtype=torch.float64)
    for head in range(queries.shape[1]):
        of = head // groups
        for query in range(queries.shape[2]):
            seen = [key for key in range(keys.shape[2]) if sees(query, key)]
            scores = [
                SCALE * float(queries[0, head, query].double() @ keys[0, of, key].double())
                for key in seen
            ]
            weights = [math.exp(score - max(scores)) for score in scores]
            for key, weight in zip(seen, weights, strict=True):
                attended[0, head, query] += weight / sum(weights) * values[0, of, key].double()
    return attended.float()


def poisoned(cache):
    """A cache whose memory beyond what is written holds NaN."""
    write = cache.begin_write(1)
    write.keys.fill_(float("nan"))
    write.values.fill_(float("nan"))
    cache.end_write(0)
    return cache


def with_refused(rows, surplus):
    """Rows of tokens that will be dropped again, unlike any that stay."""
    return torch.cat((rows, rows.new_full((*rows.shape[:2], surplus, rows.shape[3]), 50.0)), dim=2)


def step(attention, cache, rows, start, end, **settings):
    queries, keys, values = (part[:, :, start:end] for part in rows)
    batch = Batch.of(range(end - start), start, CPU)
    return attention(queries, keys, values, batch, cache=cache, **settings)


HEADS = st.builds(Heads, st.sampled_from((1, 2)), st.sampled_from((1, 3)), st.sampled_from((5, 8)))
CHUNKS = st.lists(st.sampled_from((1, 1, 2, 3, 7, 17, 20)), min_size=1, max_size=12)
REFERENCE: dict = {}


def reference(heads, seed, window):
    key = (heads, seed, window)
    if key not in REFERENCE:
        width = window or LENGTH
        rows = heads.rows(seed)
        REFERENCE[key] = dense(*rows, lambda query, key: query - width < key <= query)
    return REFERENCE[key]


@settings(max_examples=60)
@given(
    heads=HEADS,
    window=st.sampled_from((None, 1, 4, 16, 100)),
    slack=st.sampled_from((2, 5, 16)),
    chunks=CHUNKS,
    refused=st.lists(st.integers(0, 3), min_size=12, max_size=12),
)
def test_any_chunking_attends_as_the_whole_does(heads, window, slack, chunks, refused):
    """ROT-7, ROT-2, KV-3, MSK-5, MSK-6, R3, R15, WRT-7: windows shorter and longer than the prompt,
    rewinds within the slack, and NaN in all memory that holds no row.
    """
    shape = RowShape(heads.kv, heads.dim, heads.dim, torch.float32, CPU)
    cache = KVCache(shape, 64) if window is None else RotatingCache(shape, window, slack)
    poisoned(cache)
    rows, attention = heads.rows(0), Attention(0, SCALE, window)
    expected = reference(heads, 0, window)
    start = 0
    for chunk, back in zip(chunks, refused, strict=False):
        end = min(start + chunk, LENGTH)
        if start == end:
            break
        surplus = min(back, slack)
        drafted = [with_refused(part[:, :, :end], surplus) for part in rows]
        attended = step(attention, cache, drafted, start, end + surplus)
        assert torch.allclose(attended[:, :, : end - start], expected[:, :, start:end], atol=1e-5)
        assert cache.restore(None, end)
        start = end


@settings(max_examples=15)
@given(heads=HEADS, window=st.sampled_from((None, 4, 16, 100)), length=st.integers(1, LENGTH))
def test_without_a_cache_a_batch_attends_within_itself(heads, window, length):
    """CON-9, CON-12: the window then comes with the mask."""
    rows = heads.rows(0)
    attended = step(Attention(0, SCALE, window), None, rows, 0, length)
    expected = reference(heads, 0, window)
    assert torch.allclose(attended, expected[:, :, :length], atol=1e-5)


@settings(max_examples=25)
@given(
    window=st.sampled_from((None, 4, 16)),
    cut=st.integers(0, 20),
    begin=st.integers(0, 20),
    size=st.integers(1, 12),
    cached=st.booleans(),
)
def test_rectangles_show_later_positions(window, cut, begin, size, cached):
    """RAP-3, MSK-5, CON-12: up to the rectangle's end, and still nothing older than the window."""
    heads, length = Heads(1, 2, 5), 32
    rows = heads.rows(1)
    first = min(cut, begin)  # a rectangle lies within one forward
    mask = relax(CAUSAL, [Rect(0, begin, begin + size, begin, begin + size)])
    shape = RowShape(1, 5, 5, torch.float32, CPU)
    cache = KVCache(shape, 64) if window is None else RotatingCache(shape, window, 5)
    attention = Attention(0, SCALE, window)
    if cached:
        if first:
            step(attention, cache, rows, 0, first)
        attended = step(attention, cache, rows, first, length, mask=mask)
    else:
        first = 0
        attended = step(attention, None, rows, 0, length, mask=mask)

    def sees(query, key):
        inside = begin <= query < begin + size and begin <= key < begin + size
        return key > query - (window or LENGTH) and (key <= query or inside)

    whole = dense(*(part[:, :, :length] for part in rows), sees)
    assert torch.allclose(attended, whole[:, :, first:], atol=1e-5)
