"""A steady step of plain decoding leaves nothing behind and takes nothing large.

03 MEM-1, on the native kernels.
"""

import gc
import json
import sys

import pytest
import torch

from fixtures.checkpoints import read_config
from fixtures.counted_allocations import run_counted
from fixtures.native_kernels import native_library
from fixtures.quantised import Quantised, quantised
from fixtures.steady_decoding import CONTEXT, REQUESTS, STEPS, decode_steadily
from forerun.base.units import KIB

LARGE = 64 * KIB  # less than half of a tiny layer's keys over the steps that count
RARELY = STEPS // 100  # the interpreter's own blocks, in some runs

COUNTED = """
import json, sys
from fixtures.steady_decoding import allocated_between
print(json.dumps(allocated_between(*json.loads(sys.argv[1]))))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Quantised:
    native_library()
    folder = tmp_path_factory.mktemp("steady")
    return quantised(folder, "llama", max_position_embeddings=CONTEXT)


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_step_leaves_nothing_behind(checkpoint: Quantised, request_name: str) -> None:
    """03 MEM-1: neither Python objects nor tensors, but for the ids in the record of the text."""
    found: list[tuple[int, int, int]] = []

    def note() -> None:
        gc.collect()
        objects = gc.get_objects()
        tensors = sum(issubclass(type(thing), torch.Tensor) for thing in objects)
        found.append((len(objects), tensors, sys.getallocatedblocks()))

    decode_steadily(checkpoint.load(torch.bfloat16), request_name, note, note)
    (objects, tensors, blocks), (later_objects, later_tensors, later_blocks) = found
    assert tensors > 0
    assert later_tensors == tensors
    assert later_objects - objects < 10
    assert later_blocks - blocks < STEPS // 2


def test_a_step_allocates_nothing_that_grows(checkpoint: Quantised) -> None:
    """03 MEM-1: no part of the history is copied, whatever the request."""
    config, files = read_config(checkpoint.folder), [str(file) for file in checkpoint.files]
    found = json.loads(run_counted(COUNTED, json.dumps([config, files, LARGE])))
    assert set(found) == set(REQUESTS)
    assert all(number <= RARELY for number, _ in found.values()), found
