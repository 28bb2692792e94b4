"""Whether a model fits: 08 FIT-1, FIT-2, FIT-3, FIT-4, T4."""

import pytest

from forerun.base.units import GIB, MIB
from forerun.scheduler.placement import Room, decide, refusal

KEPT = 457 * MIB


def room(free, **fields):
    return Room(free=free, total=fields.pop("total", 100 * GIB), overhead=KEPT, **fields)


@pytest.mark.parametrize(
    ("need", "where", "verdict"),
    [
        # none loaded: the device's own figure alone, to the byte
        (4 * GIB - KEPT, room(4 * GIB), "fits"),
        (4 * GIB - KEPT + 1, room(4 * GIB), "refuse"),
        (4 * GIB - KEPT, room(4 * GIB, system_free=1 * GIB), "fits"),
        (1, room(KEPT), "refuse"),
        (0, room(0), "fits"),  # the floor of what is available is 0
        (1, room(0), "refuse"),
        # others loaded, shared memory: the system has to have it as well
        (4 * GIB - KEPT, room(4 * GIB, residents=1, system_free=1 * GIB), "evict"),
        (1 * GIB - KEPT, room(4 * GIB, residents=1, system_free=1 * GIB), "fits"),
        (2 * GIB, room(1 * GIB, residents=1, system_free=9 * GIB), "evict"),
        (2 * GIB, room(None, residents=1, system_free=1 * GIB), "evict"),
        # others loaded, discrete memory: the system's does not matter
        (4 * GIB - KEPT, room(4 * GIB, residents=2), "fits"),
        (4 * GIB - KEPT + 1, room(4 * GIB, residents=2), "evict"),
        # what residents may still grow by is not free (FIT-4)
        (4 * GIB - KEPT, room(4 * GIB, residents=1, promised=1), "evict"),
        (3 * GIB - KEPT, room(4 * GIB, residents=1, promised=1 * GIB), "fits"),
        # larger than the device: nobody has to leave for nothing
        (9 * GIB, room(4 * GIB, total=9 * GIB, residents=2), "refuse"),
        (9 * GIB - KEPT, room(4 * GIB, total=9 * GIB, residents=2), "evict"),
        # the system does not say
        (999 * GIB, room(None), "fits"),
        (999 * GIB, room(None, residents=3), "fits"),
    ],
)
def test_a_model_fits_or_evicts_or_is_refused(need, where, verdict):
    """T4, 08 FIT-2, FIT-3."""
    assert decide(need, where) == verdict


def test_a_refusal_names_need_room_overhead_and_remedy():
    """08 FIT-3."""
    text = refusal("big:latest", 8_000_000_000, room(4 * GIB), device="cuda:0")
    assert "\n" not in text
    for part in ("big:latest", "8.0 GB", "3.8 GB", "479.2 MB", "num_ctx", "GPU_OVERHEAD"):
        assert part in text
    on_cpu = refusal("big", 8_000_000_000, room(4 * GIB), device="cpu")
    assert "GPU" not in on_cpu
    assert "smaller num_ctx" in on_cpu
