"""Sampling rows of several slots: batches, masks, bias, seeds; C07 and C11 of the faults."""

from dataclasses import replace

import pytest
import torch

from forerun.base.errors import DamagedModelError, RequestError
from forerun.sampling.noise import Purpose
from forerun.sampling.options import SamplingOptions
from forerun.sampling.refusals import NoAllowedTokenError
from forerun.sampling.token_mask import unpack_mask
from unit.sampling.making import DEVICES, one_slot, sampler, words

GREEDY = SamplingOptions(temperature=0)
SEEDED = SamplingOptions(seed=5, temperature=1.2)
DESCENDING = torch.arange(8, 0, -1.0)[None]


def noisy(rows=1, vocab=8, seed=0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def test_no_rows_give_no_tokens():
    """BAT-1."""
    drawn = sampler().sample([], torch.empty(0, 8), [])
    assert (drawn.tokens.shape, drawn.tokens.dtype) == ((0,), torch.int64)


def test_a_wrong_call_is_an_error_before_anything_is_drawn():
    """BAT-1, F2."""
    made = one_slot(GREEDY)
    with pytest.raises(AssertionError, match="slot 3 is not registered"):
        made.sample([3], DESCENDING, [0])
    with pytest.raises(AssertionError, match="2 rows of logits"):
        made.sample([0], noisy(2), [0])
    with pytest.raises(AssertionError, match="9 columns of logits, not 8"):
        made.sample([0], noisy(1, 9), [0])
    with pytest.raises(AssertionError, match="twice"):
        made.sample([0, 0], noisy(2), [0, 1])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tokens_are_int64_on_the_device_and_logits_stay_as_they_are(device, dtype):
    """F2."""
    biased = SamplingOptions(logit_bias=((1, 3.0),), repeat_penalty=1.2)
    made = one_slot(biased, [1, 2], device=device)
    logits = noisy().to(device, dtype)
    before = logits.clone()
    tokens = made.sample([0], logits, [2], words([1, 2, 3])).tokens
    assert (tokens.dtype, tokens.device.type) == (torch.int64, device)
    assert torch.equal(logits, before)


def test_every_bit_of_a_packed_mask_is_its_own_token():
    """ORD-7: the sign bit too, and bits past the vocabulary are ignored."""
    allowed = [{0, 31, 32, 69}, set(range(70)), set()]
    unpacked = unpack_mask(words(*allowed, vocab=70), 70)
    assert [set(row.nonzero().flatten().tolist()) for row in unpacked] == allowed
    spare = torch.full((1, 3), -1, dtype=torch.int32)
    assert unpack_mask(spare, 70).tolist() == [[True] * 70]
    with pytest.raises(AssertionError, match="int32"):
        unpack_mask(spare.long(), 70)
    with pytest.raises(AssertionError, match="3 mask words for 97 tokens"):
        unpack_mask(spare, 97)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [GREEDY, SEEDED, replace(SEEDED, top_k=2)], ids=str)
def test_a_grammar_blocks_before_everything_else(options, device):
    """ORD-7: top-k and probabilities are those of what the grammar allows."""
    made = one_slot(options, device=device)
    logits = DESCENDING.to(device)
    assert int(made.sample([0], logits, [0], words([5, 6])).tokens) in (5, 6)
    row = made.distribution(0, logits, allowed=words([5, 6])).dense(8)[0]
    assert (row[5] + row[6]).item() == pytest.approx(1)


def test_a_mask_may_be_one_row_for_all_or_one_each():
    """ORD-7, DST-1."""
    made = one_slot(GREEDY)
    both = made.distribution(0, DESCENDING.expand(2, -1), allowed=words([3], [7]))
    assert both.ids.tolist() == [[3], [7]]
    assert made.distribution(0, DESCENDING.expand(2, -1), allowed=words([6])).ids.tolist() == [
        [6],
        [6],
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [GREEDY, SEEDED, replace(SEEDED, top_k=0)], ids=str)
def test_an_empty_row_is_a_callers_error_and_harms_nobody_else(options, device):
    """ORD-9, C11: other slots draw what they would have drawn, and the history is as before."""
    penalised = replace(options, repeat_penalty=1.3, repeat_last_n=4)
    made, alone = sampler(device=device), sampler(device=device)
    for slot in (0, 1):
        made.add(slot, penalised, [1, 2])
        alone.add(slot, penalised, [1, 2])
    logits = noisy(2).to(device)
    with pytest.raises(NoAllowedTokenError, match="no token is allowed here") as refused:
        made.sample([0, 1], logits, [2, 2], words(range(8), []))
    assert isinstance(refused.value, RequestError)
    assert refused.value.slot == 1
    made.remove(1)
    alone.remove(1)
    for at in range(2, 8):
        got = made.sample([0], logits[:1], [at]).tokens
        assert torch.equal(got, alone.sample([0], logits[:1], [at]).tokens)


def test_a_row_whose_allowed_tokens_have_no_score_is_empty_too():
    """ORD-9: columns beyond a model's real vocabulary often hold -inf."""
    logits = DESCENDING.clone()
    logits[0, 6:] = -torch.inf
    with pytest.raises(NoAllowedTokenError):
        one_slot(SEEDED).sample([0], logits, [0], words([6, 7]))
    with pytest.raises(NoAllowedTokenError):
        one_slot(GREEDY).sample([0], torch.full((1, 8), -torch.inf), [0])


def test_logits_that_are_not_numbers_are_named_and_no_token():
    """ORD-9, 08 API-14: a broken model must not look like an answer; its user can act on it."""
    with pytest.raises(DamagedModelError, match=r"logits hold nan.*import it again") as refused:
        one_slot(SEEDED).sample([0], torch.full((1, 8), torch.nan), [0])
    assert refused.value.status == 500


def test_a_bias_of_100_forces_and_minus_100_forbids():
    """F12."""
    forced = replace(SEEDED, logit_bias=((6, 100.0),))
    only = replace(SEEDED, logit_bias=tuple((token, -100.0) for token in range(8) if token != 4))
    for at in range(50):
        assert one_slot(forced).sample([0], noisy(), [at]).tokens.tolist() == [6]
        assert one_slot(only).sample([0], noisy(), [at]).tokens.tolist() == [4]


def test_a_bias_on_every_legal_token_still_draws():
    """F12, C11: a finite bias cannot empty a row, and cannot free a blocked token (ORD-10)."""
    low = replace(SEEDED, logit_bias=((2, -100.0), (3, -100.0), (7, 100.0)))
    for at in range(50):
        drawn = one_slot(low).sample([0], noisy(), [at], words([2, 3])).tokens
        assert int(drawn) in (2, 3)


def test_a_bias_is_added_once_and_before_the_penalties():
    """ORD-10: (1 + 2) / 1.5 = 2, where 1 / 1.5 + 2 would be more than 2.5."""
    options = SamplingOptions(
        temperature=0, logit_bias=((3, 2.0),), repeat_penalty=1.5, repeat_last_n=8
    )
    logits = torch.tensor([[0, 2.5, 0, 1.0, 0, 0, 0, 0]])
    assert one_slot(options, [3, 3]).sample([0], logits, [2]).tokens.tolist() == [1]
    logits[0, 1] = 1.9
    assert one_slot(options, [3, 3]).sample([0], logits, [2]).tokens.tolist() == [3]


@pytest.mark.parametrize("device", DEVICES)
def test_a_seed_gives_the_same_text_whatever_else_happens(device):
    """C07, SED-2, SED-5: three times, beside another slot, after that slot was used and removed."""
    logits = noisy(3, seed=4).to(device)

    def text(made, slot):
        return [int(made.sample([slot], logits[:1], [at]).tokens) for at in range(12)]

    first = text(one_slot(SEEDED, device=device), 0)
    busy = sampler(device=device)
    busy.add(7, replace(SEEDED, seed=-1, repeat_penalty=1.3), [1, 2])
    busy.sample([7], logits[1:2], [2])
    busy.add(3, SEEDED, [])
    assert text(busy, 3) == first
    together = [
        busy.sample([7, 3], logits[[2, 0]], [at + 40, at]).tokens[1].item() for at in range(12)
    ]
    assert together == first
    busy.remove(7)
    assert text(busy, 3) == first
    assert text(one_slot(replace(SEEDED, seed=6), device=device), 0) != first


def test_an_unseeded_slot_draws_with_a_seed_of_its_own():
    """SED-3, 04 OPT-5: 64 bits from the operating system, so two slots never agree for long."""
    made = sampler()
    for slot in range(2):
        made.add(slot, replace(SEEDED, seed=-1), [])
    tokens = torch.stack(
        [made.sample([0, 1], torch.zeros(2, 8), [at, at]).tokens for at in range(60)]
    )
    assert not torch.equal(tokens[:, 0], tokens[:, 1])
    for purpose in Purpose:
        assert made.keys(0, [5], purpose) != made.keys(1, [5], purpose)


def test_greedy_rows_ignore_seeds_and_positions():
    """SED-5."""
    made = one_slot(replace(GREEDY, seed=3))
    assert {int(made.sample([0], DESCENDING, [at]).tokens) for at in range(9)} == {0}


def test_a_draw_is_a_function_of_seed_position_purpose_and_row():
    """DST-9, SED-1: `sample` is `distribution` drawn with the target's noise of that position."""
    made = one_slot(SEEDED)
    for at in range(20):
        row = made.distribution(0, noisy())
        keys = made.keys(0, [at], Purpose.TARGET)
        assert torch.equal(row.draw(keys), row.draw(keys))
        assert torch.equal(row.draw(keys), made.sample([0], noisy(), [at]).tokens)
