"""The pooled ring of tokens that penalties look back on (SLT-1..6)."""

import pytest
import torch

from forerun.sampling.options import SamplingOptions
from forerun.sampling.penalty_history import PenaltyHistory
from unit.sampling.making import CPU, DEVICES, one_slot, sampler

PENALISED = SamplingOptions(repeat_penalty=1.3, repeat_last_n=4)


def history(*capacities, device="cpu"):
    made = PenaltyHistory(100, torch.device(device))
    for capacity in capacities:
        made.add(capacity, [])
    return made


@pytest.mark.parametrize("device", DEVICES)
def test_tokens_land_where_their_number_says(device):
    """SLT-4, SLT-6: the example of the rule."""
    ring = history(device=device)
    ring.add(4, [10, 11, 12])
    ring.extend(0, [20, 21, 22])
    assert ring.pool.tolist() == [[21, 22, 12, 20]]
    ring.extend(0, [30, 31, 32, 33, 34])
    assert ring.pool.tolist() == [[32, 33, 34, 31]]
    ring.append([0], torch.tensor([40], device=device))  # token number 11
    assert ring.pool.tolist() == [[32, 33, 34, 40]]
    ring.extend(0, [])
    assert ring.pool.tolist() == [[32, 33, 34, 40]]


def test_the_end_of_the_prompt_fills_a_row_from_its_first_column():
    """SLT-2: the next token overwrites the oldest."""
    ring = history()
    ring.add(3, [1, 2, 3, 4, 5])
    assert ring.pool.tolist() == [[3, 4, 5]]
    ring.append([0], torch.tensor([9]))
    assert ring.pool.tolist() == [[9, 4, 5]]


def test_the_pool_begins_with_the_first_penalty_and_widens_when_needed():
    """SLT-2."""
    ring = history(0, 0)
    assert ring.pool is None
    ring.add(2, [7, 8])
    assert ring.pool.tolist() == [[0, 0], [0, 0], [7, 8]]
    ring.add(3, [1, 2, 3])
    assert ring.pool.tolist() == [[0, 0, 0], [0, 0, 0], [7, 8, 0], [1, 2, 3]]
    ring.append([3, 2, 0], torch.tensor([4, 9, 5]))
    assert ring.pool.tolist() == [[0, 0, 0], [0, 0, 0], [9, 8, 0], [4, 2, 3]]


def test_a_capacity_of_nothing_keeps_nothing():
    """F1: a slice that ends at zero is empty, not whole."""
    ring = history(2)
    ring.add(0, [1, 2, 3])
    ring.extend(1, [4, 5])
    assert ring.pool.tolist() == [[0, 0], [0, 0]]
    assert ring.window([1]) is None


def test_removing_a_row_moves_the_others_up_and_the_last_frees_the_pool():
    """SLT-3."""
    ring = history()
    for tokens in ([1, 2], [3, 4], [5, 6]):
        ring.add(2, tokens)
    ring.remove(1)
    assert ring.pool.tolist() == [[1, 2], [5, 6]]
    ring.append([1], torch.tensor([7]))
    assert ring.pool.tolist() == [[1, 2], [7, 6]]
    ring.remove(0)
    ring.remove(0)
    assert ring.pool is None


def test_the_pool_is_written_in_place():
    """SLT-5: shape and address stay from step to step, whatever is written."""
    ring = history(3, 3)
    pool, address = ring.pool, ring.pool.data_ptr()
    for token in range(20):
        ring.append([1, 0], torch.tensor([token, token]))
        ring.extend(0, [token] * (token % 5))
    assert ring.pool is pool
    assert (pool.data_ptr(), pool.shape) == (address, (2, 3))


def test_a_token_outside_the_vocabulary_is_refused_at_the_border():
    """F2: on a GPU a wild id would be an assertion that kills the process."""
    ring = PenaltyHistory(10, CPU)
    ring.add(4, [9])
    for wild in (10, -1):
        with pytest.raises(AssertionError, match=f"{wild}"):
            ring.extend(0, [1, wild])


def test_slots_are_registered_once_and_forgotten_at_will():
    """SLT-1, SLT-3."""
    made = one_slot(PENALISED, [1, 2, 3])
    with pytest.raises(AssertionError, match="registered already"):
        made.add(0, PENALISED, [1])
    made.remove(17)
    made.remove(0)
    made.add(0, PENALISED, [1])
    made.free()
    made.add(0, PENALISED, [1])
    with pytest.raises(AssertionError, match="not registered"):
        made.options(1)


def test_a_slot_keeps_its_own_history_when_others_leave_and_join():
    """SLT-2, SLT-3: rows are found by order of registration, which removal changes."""
    greedy = SamplingOptions(temperature=0, repeat_penalty=2.0, repeat_last_n=4)
    logits = torch.tensor([[1.0, 0.9, 0.8, 0.7, 0, 0, 0, 0]])
    made = sampler()
    for slot, prior in enumerate(([0], [0, 1], [0, 1, 2])):
        made.add(slot, greedy, prior)
    made.remove(1)
    made.add(1, greedy, [1])
    tokens = made.sample([0, 1, 2], logits.expand(3, -1), [1, 1, 3]).tokens
    assert tokens.tolist() == [1, 0, 3]
    made.remove(0)
    assert made.sample([1, 2], logits.expand(2, -1), [2, 4]).tokens.tolist() == [2, 0]


def test_the_sampler_looks_back_on_the_prompt_it_was_given():
    """SLT-1: the prompt's tail counts as history."""
    logits = torch.tensor([[1.0, 0.9, 0, 0, 0, 0, 0, 0]])
    greedy = SamplingOptions(temperature=0, repeat_penalty=2.0, repeat_last_n=4)
    assert one_slot(greedy, [5]).sample([0], logits, [1]).tokens.tolist() == [0]
    assert one_slot(greedy, [5, 0]).sample([0], logits, [2]).tokens.tolist() == [1]


def test_a_commit_needs_a_registered_slot():
    """SLT-6."""
    with pytest.raises(AssertionError, match="not registered"):
        sampler().commit(3, [1])
