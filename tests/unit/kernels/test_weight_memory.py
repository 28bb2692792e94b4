"""The memory that packed weights lie in (06 KER-1)."""

import gc

import pytest
import torch

from forerun.engine.memory import anonymous_bytes
from forerun.kernels.native.weight_memory import ALIGNMENT, LARGE_PAGE, Room, weight_memory

SIZES = [1, 63, 64, 100_000, LARGE_PAGE - 1, LARGE_PAGE, LARGE_PAGE + 1, 3 * LARGE_PAGE]


@pytest.mark.parametrize("size", SIZES)
def test_memory_is_of_the_asked_size_on_a_cache_line_and_can_be_written(size: int) -> None:
    memory = weight_memory(size)
    assert memory.dtype == torch.uint8
    assert memory.shape == (size,)
    assert memory.data_ptr() % ALIGNMENT == 0
    assert int(memory.fill_(7).long().sum()) == 7 * size


@pytest.mark.parametrize("size", [1000, 2 * LARGE_PAGE])
def test_weights_of_one_room_stand_apart_and_keep_it_alive(size: int) -> None:
    room = Room(size)
    parts = [room.take(part) for part in (1, 64, 65, 100)]
    del room
    for value, part in enumerate(parts):
        assert part.data_ptr() % ALIGNMENT == 0
        part.fill_(value)
    assert [part.unique().tolist() for part in parts] == [[0], [1], [2], [3]]


def test_a_room_gives_no_more_than_it_has() -> None:
    room, full = Room(100), Room(100)
    room.take(64)
    full.take(64)
    assert room.take(36).shape == (36,)
    with pytest.raises(AssertionError, match="no room for 37 more bytes"):
        full.take(37)


def test_memory_goes_with_the_last_weight_in_it() -> None:
    """05 ACC-4, MEM-1: anonymous resident memory is back where it was."""
    size = 64 * LARGE_PAGE
    weight_memory(size).fill_(1)
    gc.collect()
    before = anonymous_bytes()
    held = weight_memory(size)
    held.fill_(1)
    part = held[5:9]
    del held
    assert anonymous_bytes() - before > size * 0.9
    del part
    assert anonymous_bytes() - before < size * 0.1
