"""What it costs to keep a round's inputs and to fold them in (01 REC-5)."""

import pytest
import torch

from fixtures.allocations import allocations
from fixtures.numbered_states import SHAPE, STATE_BYTES, fill, latest, play, put
from forerun.cache.recurrent import RecurrentCache
from forerun.contract.model import WIDEST_ROUND
from forerun.contract.recurrence import RecurrentInputs
from forerun.kernels.gated_delta.reference import reference_fold
from forerun.speculation.rollback import Rollback


def test_steady_rounds_and_steps_allocate_nothing():
    """REC-5, REW-3, REW-4, ROT-8: the same tensors serve all of them, of whatever width."""
    cache = RecurrentCache(SHAPE, latest)
    put(cache, 1, 1)
    rollback = Rollback([cache])

    def rounds():
        for width, keep in ((5, 2), (16, 0), (2, 1), (5, 4), (5, 0)):
            before = cache.offset
            rollback.begin(before, width - 1)
            write = cache.begin_write(width)
            fill(write, range(width))
            cache.put(write.update)
            rollback.commit(keep)
            assert cache.offset == before + 1 + keep
            cache.put(cache.begin_write(1).update)

    rounds()
    held_bytes, generation = cache.nbytes(), cache.generation
    assert allocations(rounds) == []
    assert (cache.nbytes(), cache.generation) == (held_bytes, generation)


def test_bytes_with_a_round_are_those_of_all_that_is_written():
    """ACC-3"""
    cache = RecurrentCache(SHAPE, latest)
    put(cache, 1, 1)
    assert cache.nbytes() == STATE_BYTES
    play(cache, [2, 3])
    inputs = 4 * WIDEST_ROUND * (10 + 4 + 6 + 2 + 2)
    assert cache.nbytes() == STATE_BYTES + inputs
    cache.take_snapshots()[0].close()
    play(cache, [4, 5])
    assert cache.nbytes() == 2 * (STATE_BYTES + inputs)


@pytest.mark.parametrize("count", [1, 5, 16])
def test_the_reference_fold_reads_so_many_inputs(count):
    """REC-5, WID-4: those beyond may be anything; the state before is only read."""
    parts = (
        torch.randn(1, 16, 10),
        torch.randn(1, 16, 1, 4),
        torch.randn(1, 16, 2, 3),
        torch.rand(1, 16, 2),
        torch.rand(1, 16, 2),
    )
    for part in parts:
        part[:, count:] = float("nan")
    inputs, delta = RecurrentInputs(*parts), torch.randn(1, 2, 3, 4)
    before, expected = delta.clone(), delta.clone()
    for step in range(count):
        expected = expected * inputs.decay[:, step, :, None, None]
        key = inputs.keys[:, step].repeat_interleave(2, dim=1)[:, :, None]
        error = inputs.values[:, step] - (expected * key).sum(-1)
        expected = expected + (error * inputs.beta[:, step, :, None])[..., None] * key
    made = reference_fold(delta, inputs, count)
    torch.testing.assert_close(made, expected)
    assert torch.equal(delta, before)
    assert made.untyped_storage().nbytes() == made.nbytes
