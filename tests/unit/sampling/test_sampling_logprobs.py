"""Log-probabilities beside the drawn tokens (LGP)."""

from dataclasses import replace

import pytest
import torch

from forerun.sampling.options import SamplingOptions
from unit.sampling.making import one_slot, sampler, words

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, 3.0, 0.5, 0.25, -2.0]])
WANTS = SamplingOptions(temperature=0, logprobs=True, top_logprobs=3)


def ranked(logprobs, row=0):
    pairs = zip(logprobs.top_ids[row].tolist(), logprobs.top_values[row].tolist(), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])


@pytest.mark.parametrize("temperature", [0.0, 0.3, 2.0])
def test_they_are_the_models_own_whatever_the_sampling(temperature):
    """LGP-1, F7: before penalties, temperature and filters."""
    options = replace(WANTS, temperature=temperature, top_k=1, repeat_penalty=1.9)
    found = one_slot(options, [4, 4, 0]).sample([0], LOGITS, [3])
    want = LOGITS.log_softmax(-1)[0]
    torch.testing.assert_close(found.logprobs.token, want[found.tokens])
    assert [token for token, _ in ranked(found.logprobs)] == [4, 0, 1]
    torch.testing.assert_close(
        torch.tensor([value for _, value in ranked(found.logprobs)]), want[[4, 0, 1]]
    )


def test_they_see_the_grammar_and_the_bias():
    """LGP-1, ORD-7."""
    options = replace(WANTS, logit_bias=((7, 4.0),))
    found = one_slot(options).sample([0], LOGITS, [0], words([2, 7]))
    want = torch.tensor([0.0, 2.0]).log_softmax(-1)
    assert found.tokens.tolist() == [7]
    torch.testing.assert_close(found.logprobs.token, want[1:])
    assert ranked(found.logprobs)[:2] == [
        (7, pytest.approx(want[1].item())),
        (2, pytest.approx(want[0].item())),
    ]
    assert ranked(found.logprobs)[2][1] == -torch.inf


def test_an_unlikely_token_has_a_finite_value():
    """LGP-1: its probability underflows, the logarithm does not."""
    found = one_slot(WANTS).logprobs(0, LOGITS * 100, torch.tensor([7]))
    assert found.token.item() == pytest.approx(-500, rel=1e-6)


def test_large_scores_lose_no_precision():
    """LGP-1: the maximum is subtracted first."""
    found = one_slot(WANTS).sample([0], LOGITS + 2**13, [0]).logprobs
    torch.testing.assert_close(found.token, LOGITS.log_softmax(-1)[:, 4])


def test_nothing_is_computed_when_nobody_asks():
    """LGP-2."""
    made = one_slot(replace(WANTS, logprobs=False))
    assert made.sample([0], LOGITS, [0]).logprobs is None
    assert made.logprobs(0, LOGITS, torch.tensor([1])) is None


def test_one_slot_that_asks_is_enough_for_all_rows():
    """LGP-2, LGP-3: the longest list asked for, for every row, in fused and in serial passes."""
    made = sampler()
    made.add(0, replace(WANTS, logprobs=False, top_logprobs=7), [])
    made.add(1, replace(WANTS, top_logprobs=1), [])
    made.add(2, replace(WANTS, temperature=1.0, top_logprobs=2), [])
    for slots in ([0, 1], [0, 1, 2]):
        found = made.sample(slots, LOGITS.expand(len(slots), -1), [0] * len(slots)).logprobs
        assert found.top_ids.shape == (len(slots), 2)
        assert all({token for token, _ in ranked(found, row)} == {4, 0} for row in range(2))
    made.remove(2)
    assert made.sample([0], LOGITS, [1]).logprobs.top_ids.shape == (1, 1)
    made.remove(1)
    assert made.sample([0], LOGITS, [2]).logprobs is None


def test_a_list_ends_with_the_vocabulary():
    """LGP-3, ORD-6."""
    found = one_slot(replace(WANTS, top_logprobs=20)).sample([0], LOGITS, [0]).logprobs
    assert found.top_ids.shape == (1, 8)


def test_no_list_but_the_tokens_own():
    """LGP-3."""
    found = one_slot(replace(WANTS, top_logprobs=0)).sample([0], LOGITS, [0]).logprobs
    assert found.top_ids.shape == (1, 0)
    assert found.token.shape == (1,)


def test_rows_of_a_verification_have_one_entry_a_token():
    """LGP-4, LGP-6: the same values as if each token had been drawn from its row."""
    made = one_slot(replace(WANTS, logit_bias=((1, 1.5),), repeat_penalty=1.7), [1, 1])
    logits = torch.cat([LOGITS, LOGITS.flip(-1), LOGITS * 2])
    masks = words(range(8), [0, 1, 2], range(8))
    found = made.logprobs(0, logits, torch.tensor([3, 2, 7]), masks)
    for row, token in enumerate([3, 2, 7]):
        single = one_slot(replace(WANTS, logit_bias=((1, 1.5), (token, 100.0))))
        drawn = single.logprobs(0, logits[row : row + 1], torch.tensor([token]))
        assert drawn.token.item() == pytest.approx(0, abs=1e-5)  # the forced one, by contrast
        allowed = torch.tensor([row != 1 or column < 3 for column in range(8)])
        scores = (logits[row] + torch.tensor([0, 1.5, 0, 0, 0, 0, 0, 0])).masked_fill(
            ~allowed, -torch.inf
        )
        assert found.token[row].item() == pytest.approx(scores.log_softmax(-1)[token].item())
    assert found.top_ids.shape == (3, 3)
