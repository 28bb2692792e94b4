"""What is measured on which device: 05 REQ-2, LOD-6; 02 STR-9."""

import resource
from pathlib import Path

import pytest
import torch

from fixtures.hybrid import loaded_hybrid
from fixtures.toy import ask
from forerun.engine.memory import cache_bytes, peak_bytes, release_freed, restart_peak

CUDA = torch.device("cuda:1")
CPU = torch.device("cpu")


@pytest.fixture
def called(monkeypatch):
    """The calls of torch's CUDA memory functions, which need no device to be counted."""
    calls = []

    def noted(name, answer):
        def call(*arguments):
            calls.append((name, *arguments))
            return answer

        monkeypatch.setattr(torch.cuda, name, call)

    for name, answer in [
        ("reset_peak_memory_stats", None),
        ("max_memory_allocated", 7),
        ("empty_cache", None),
    ]:
        noted(name, answer)
    return calls


def test_the_peak_on_cuda_is_the_devices_own_since_the_request_began(called):
    """REQ-2."""
    restart_peak(CUDA)
    assert peak_bytes(CUDA) == 7
    assert called == [("reset_peak_memory_stats", CUDA), ("max_memory_allocated", CUDA)]


def test_the_peak_on_a_cpu_is_what_was_resident(called):
    """REQ-2: memory that was given back counts."""
    restart_peak(CPU)
    held = torch.ones(64 * 2**20, dtype=torch.uint8)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    del held
    assert peak_bytes(CPU) > resident - 2**22  # the system counts in strides
    assert called == []


def test_freed_memory_is_given_back_on_its_device(called):
    """LOD-6."""
    release_freed(CPU)
    assert called == []
    release_freed(CUDA)
    assert called == [("empty_cache",)]


def test_the_drafters_own_caches_are_live_state_too():
    """02 STR-9: they hold as many positions as the target's."""
    without, following = loaded_hybrid(look_ahead_keys=0), loaded_hybrid()
    with torch.inference_mode():
        for loaded in (without, following):
            assert ask(loaded, range(1, 20), budget=3).error is None
    (own,) = (cache for cache in following.drafters.caches if cache is not None)
    assert own.nbytes() > 0
    assert cache_bytes(following) == cache_bytes(without) + own.nbytes()
