"""Where `Write.store` puts rows, for each way that a cache may say it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.contract.history import History, Write

CAPACITY = 8


def made(start, index, batch):
    keys = torch.zeros(batch, 2, CAPACITY, 3)
    values = torch.zeros(batch, 2, CAPACITY, 1)
    return Write(keys, values, start, History(keys, values, live=CAPACITY), index=index)


@given(
    st.integers(1, 2).flatmap(
        lambda batch: st.lists(
            st.permutations(range(CAPACITY)).map(lambda p: p[:3]), min_size=batch, max_size=batch
        )
    ),
    st.sampled_from(("start", "shared", "per row")),
)
def test_row_i_goes_where_the_write_says(places, form):
    """WRT-1: a start, one index for all sequences, or one for each."""
    batch = len(places)
    if form == "start":
        first = min(places[0][0], CAPACITY - 3)
        places, write = [range(first, first + 3)] * batch, made(first, None, batch)
    elif form == "shared":
        places = [places[0]] * batch
        write = made(0, torch.tensor(places[0]), batch)
    else:
        write = made(0, torch.tensor(places), batch)
    keys, values = torch.randn(batch, 2, 3, 3), torch.randn(batch, 2, 3, 1)
    write.store(keys, values)
    for row in range(batch):
        untouched = set(range(CAPACITY)) - set(places[row])
        for i, place in enumerate(places[row]):
            assert torch.equal(write.keys[row, :, place], keys[row, :, i])
            assert torch.equal(write.values[row, :, place], values[row, :, i])
        assert not write.keys[row, :, sorted(untouched)].any()


def test_too_many_rows_for_the_buffer_are_an_error_and_not_a_silent_cut():
    """WRT-1."""
    with pytest.raises(RuntimeError):
        made(CAPACITY - 2, None, 1).store(torch.ones(1, 2, 3, 3), torch.ones(1, 2, 3, 1))
