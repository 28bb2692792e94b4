"""Several decoder layers in one C++ call are the same layers call by call, bit for bit.

06 KER-1: where few rows pass, and where many do.
"""

from ctypes import addressof

import numpy as np
import pytest

from fixtures.native_kernels import ISAS, Floats, address, memory, native_library, team
from fixtures.native_layers import (
    SHAPES,
    Layer,
    Rows,
    empty_rows,
    random_layer,
    rope_tables,
    tokens_of,
)
from forerun.kernels.native.library import Team
from forerun.kernels.native.structs import FrLayer, FrPass, FrStep

LENGTH = 60


def _layers(name: str) -> list[Layer]:
    return [random_layer(SHAPES[name], seed) for seed in range(4)]


def _passed(
    members: Team, layers: list[Layer], widths: list[int], together: int
) -> tuple[Floats, list[Rows]]:
    """What `LENGTH` rows are after all layers, by calls for `together` of them, and the caches."""
    shape, library = layers[0].shape, native_library()
    rows = [empty_rows(shape, LENGTH, bfloat16=True) for _ in range(2 * len(layers))]
    structs = (FrLayer * len(layers))(*(layer.struct() for layer in layers))
    stream = np.random.default_rng(5).standard_normal((LENGTH, 96)).astype(np.float32)
    tokens, first = tokens_of(stream), 0
    for width in widths:
        cosines, sines = rope_tables(first + np.arange(width), shape)
        passing = FrPass(*map(address, (stream[first:], cosines, sines)), width)
        passing.tokens = address(tokens[first:])
        steps = (FrStep * len(layers))()
        for step, keys, values in zip(steps, rows[::2], rows[1::2], strict=True):
            step.rows, step.keys, step.values = addressof(passing), address(keys), address(values)
            step.key_stride = step.value_stride = LENGTH * shape.head_dim
            step.bfloat16, step.first_row, step.live = 1, first, first + width
        scratch = memory(library.layer_scratch(structs[0], width, members.threads))
        for at in range(0, len(layers), together):
            where = addressof(structs[at]), addressof(steps[at])
            members.layers(*where, together, scratch.ctypes.data)
        first += width
    return stream, rows


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SHAPES)
def test_layers_in_one_call_are_layers_call_by_call(name: str, isa: str) -> None:
    """06 WID-1, WID-3: the stream and every kept row, few rows or many, on 1 to 3 threads."""
    layers = _layers(name)
    want, kept = _passed(team(1, isa), layers, [LENGTH], 1)
    for threads, widths in ((1, [1, 3, 56]), (2, [2, 16, 40, 1, 1]), (3, [17, 1, 42]), (3, [60])):
        for together in (2, 4):
            got, rows = _passed(team(threads, isa), layers, widths, together)
            assert got.tobytes() == want.tobytes(), (threads, widths, together)
            for ours, theirs in zip(rows, kept, strict=True):
                assert ours.tobytes() == theirs.tobytes(), (threads, widths, together)


def test_no_layers_change_nothing() -> None:
    stream = np.ones((1, 96), np.float32)
    passing = FrPass(address(stream), None, None, 1)
    step = FrStep(addressof(passing))
    team(2).layers(addressof(FrLayer()), addressof(step), 0, 0)
    assert (stream == 1).all()
