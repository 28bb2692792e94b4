"""Pooling chunk by chunk, against the plainest sums over all rows (08 API-13)."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, tensor

from forerun.engine.pooling import MODES, Pool, Pooling

Row = list[float]
rows_of_two = st.lists(
    st.lists(st.integers(-4, 4).map(float), min_size=2, max_size=2), min_size=1, max_size=7
)


def plain(mode: str, rows: list[Row]) -> Row:
    """One dimension at a time, over a list."""
    count = len(rows)
    columns = list(zip(*rows, strict=True))
    weights = range(1, count + 1)
    return {
        "cls": lambda: rows[0],
        "lasttoken": lambda: rows[-1],
        "max": lambda: [max(column) for column in columns],
        "mean": lambda: [sum(column) / count for column in columns],
        "mean_sqrt_len_tokens": lambda: [sum(column) / math.sqrt(count) for column in columns],
        "weightedmean": lambda: [
            sum(w * x for w, x in zip(weights, column, strict=True)) / sum(weights)
            for column in columns
        ],
    }[mode]()


def pooled(modes: tuple[str, ...], chunks: list[Tensor]) -> list[float]:
    pool = Pool(Pooling(modes))
    for chunk in chunks:
        pool.add(chunk)
    vector: list[float] = pool.vector().tolist()
    return vector


@given(rows_of_two, st.lists(st.sampled_from(sorted(MODES)), min_size=1, max_size=3), st.data())
def test_any_chunks_pool_as_the_whole(rows: list[Row], modes: list[str], data: st.DataObject):
    """Law: whatever the chunks, each mode's vector is that of all rows, and several follow one
    another in the order given."""
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(rows) - 1)), max_size=3)))
    bounds = [0, *(cut for cut in cuts if cut < len(rows)), len(rows)]
    chunks = [tensor(rows[a:b]) for a, b in itertools.pairwise(bounds)]
    wanted = [value for mode in modes for value in plain(mode, rows)]
    assert pooled(tuple(modes), chunks) == pytest.approx(wanted, abs=1e-5)


def test_what_a_graph_overwrites_has_been_taken_in():
    """The next forward may write over the rows of the one before (contract of Forward)."""
    rows = tensor([[1.0, 2.0], [3.0, 4.0]])
    pool = Pool(Pooling(("cls", "lasttoken")))
    pool.add(rows)
    rows.zero_()
    assert pool.vector().tolist() == [1, 2, 3, 4]
