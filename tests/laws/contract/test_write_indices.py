"""Where `Write.store` puts rows, for each way that a cache may say it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.contract.history import History, Write

CAPACITY = 8


def made(first_index, index, batch):
    keys = torch.zeros(batch, 2, CAPACITY, 3)
    values = torch.zeros(batch, 2, CAPACITY, 1)
    return Write(keys, values, first_index, History(keys, values, live=CAPACITY), index=index)


@given(
    st.integers(1, 2).flatmap(
        lambda batch: st.lists(
            st.permutations(range(CAPACITY)).map(lambda p: p[:3]), min_size=batch, max_size=batch
        )
    ),
    st.sampled_from(("first index", "shared", "per row")),
)
def test_row_i_goes_where_the_write_says(indices, form):
    """WRT-1: a first index, an index tensor for all sequences, or one for each."""
    batch = len(indices)
    if form == "first index":
        first = min(indices[0][0], CAPACITY - 3)
        indices, write = [range(first, first + 3)] * batch, made(first, None, batch)
    elif form == "shared":
        indices = [indices[0]] * batch
        write = made(0, torch.tensor(indices[0]), batch)
    else:
        write = made(0, torch.tensor(indices), batch)
    keys, values = torch.randn(batch, 2, 3, 3), torch.randn(batch, 2, 3, 1)
    write.store(keys, values)
    for row in range(batch):
        untouched = set(range(CAPACITY)) - set(indices[row])
        for i, index in enumerate(indices[row]):
            assert torch.equal(write.keys[row, :, index], keys[row, :, i])
            assert torch.equal(write.values[row, :, index], values[row, :, i])
        assert not write.keys[row, :, sorted(untouched)].any()


def test_too_many_rows_for_the_buffer_are_an_error_and_not_a_silent_cut():
    """WRT-1."""
    with pytest.raises(RuntimeError):
        made(CAPACITY - 2, None, 1).store(torch.ones(1, 2, 3, 3), torch.ones(1, 2, 3, 1))
