"""No call of a kernel allocates (03 MEM-1): memory is lent by the caller."""

import json

from fixtures.counted_allocations import run_counted
from fixtures.native_kernels import ISAS, native_library

# The first calls start threads and load what the linker does lazily.
CALLS = """
import json
import numpy as np
import torch
from fixtures.counted_allocations import CountedFunctions
from fixtures.delta_operands import (
    SIZES, DeltaRunner, DeltaWrite, Filled, delta_operands, nan_inputs, nan_state, random_state
)
from fixtures.native_kernels import head, linear, random_weight, team
from fixtures.native_layers import SHAPES, empty_rows, random_layer, run_step
from forerun.kernels.gated_delta.native import NativeFold

random = np.random.default_rng(0)
layers = {name: random_layer(shape) for name, shape in SHAPES.items()}
rows = {
    name: [empty_rows(shape, 400, bfloat16=True) for _ in "kv"] for name, shape in SHAPES.items()
}
weight = random_weight(random, 777, 96, bits=8)
narrow = random_weight(random, 33, 96, biased=True)

sizes = SIZES["odd"]
delta, fold, before = DeltaRunner(delta_operands(sizes)), NativeFold(1), random_state(sizes)
end, kept = nan_state(sizes), nan_inputs(sizes, 300)

def all_kernels(members, width, first_row):
    fold._team = members
    delta.run(members, torch.randn(width, 96), DeltaWrite(before, Filled(end, (), kept)))
    delta.run(members, torch.randn(300, 96), DeltaWrite(before, Filled(), kept.first(width)))
    fold(before.delta, kept, width)
    x = random.standard_normal((width, 96)).astype(np.float32)
    for name, layer in layers.items():
        run_step(members, layer, x.copy(), rows[name], first_row)
    linear(members, [weight, narrow], x)
    head(members, weight, x, norm=np.ones(96, np.float32), top=5)

found = {}
for isa in ISAS:
    for threads in (1, 3):
        members = team(threads, isa)
        all_kernels(members, 1, 0)
        counted = members._functions = CountedFunctions(members._functions)
        for width, first_row in ((1, 1), (1, 140), (4, 141), (70, 300)):
            all_kernels(members, width, first_row)
        found[f"{isa} {threads}"] = counted.found
print(json.dumps(found))
"""
BLIND = """
import ctypes
from fixtures.counted_allocations import CountedFunctions, Counts
counted = CountedFunctions(ctypes.CDLL(None))
for name, *arguments in (
    ("malloc", 8), ("calloc", 8, 8), ("realloc", None, 8), ("aligned_alloc", 64, 64),
    ("posix_memalign", ctypes.c_void_p * 1, 64, 64), ("mmap", None, 4096, 0, 0x22, -1, 0),
):
    getattr(counted, name)(*[a() if isinstance(a, type) else a for a in arguments])
assert all(number == 1 for _, number in counted.found), counted.found
counted.getpid()
assert counted.found[-1] == ("getpid", 0)
counts = Counts(from_bytes=5000)
counts.start()
kept = [bytearray(size) for size in (4000, 6000)]
number, size = counts.stop()
assert number == 1 and 6000 <= size < 6100, (number, size)
"""


def test_the_count_sees_every_way_to_allocate() -> None:
    """Else none of the tests with it means anything."""
    run_counted(BLIND)


def test_kernels_allocate_nothing() -> None:
    """03 MEM-1, 06 KER-1: layers, head and linear, of one row and of many, after the first call."""
    native_library()
    found = json.loads(run_counted(f"ISAS = {ISAS!r}\n{CALLS}"))
    assert set(found) == {f"{isa} {threads}" for isa in ISAS for threads in (1, 3)}
    for calls in found.values():
        assert {name for name, _ in calls} == {"fr_layers", "fr_linear", "fr_head", "fr_delta_fold"}
        assert [call for call in calls if call[1]] == []
