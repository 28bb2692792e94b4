"""Sampling from the largest logits: how many decide, and what is refused as ever."""

import pytest
import torch

from forerun.base.errors import DamagedModelError
from forerun.contract.model import Best
from forerun.sampling.host_row import NO_TOKEN
from forerun.sampling.options import SamplingOptions
from forerun.sampling.refusals import NoAllowedTokenError
from unit.sampling.making import one_slot, sampler

VOCABULARY = 400
SAMPLED = {"temperature": 1.0, "top_k": 40}
PRIOR = [5, 6, 5, 7]


def best(values, ids):
    return Best(torch.tensor([values]), torch.tensor([ids]))


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"temperature": 0}, 1),
        ({"top_k": 1}, 1),
        ({**SAMPLED, "top_p": 0.0, "top_k": 0}, 1),
        (SAMPLED, 40),
        ({**SAMPLED, "repeat_penalty": 1.1}, 43),
        ({**SAMPLED, "repeat_penalty": 1.1, "repeat_last_n": 2}, 42),
        ({**SAMPLED, "repeat_penalty": 1.1, "repeat_last_n": 0}, 40),
        ({"temperature": 0, "presence_penalty": 0.5}, 4),
        ({"temperature": 0, "frequency_penalty": 0.5}, 4),
        ({**SAMPLED, "top_k": 0}, None),
        ({**SAMPLED, "top_k": 400}, None),
        ({**SAMPLED, "top_k": 398, "repeat_penalty": 1.1}, None),
        ({**SAMPLED, "repeat_penalty": 0.9}, None),
        ({**SAMPLED, "presence_penalty": -0.1}, None),
        ({**SAMPLED, "repeat_penalty": 2.0, "frequency_penalty": -0.1}, None),
        ({**SAMPLED, "logit_bias": ((3, 1.0),)}, None),
        ({"temperature": 0, "logprobs": True}, None),
    ],
    ids=str,
)
def test_how_many_of_the_largest_logits_decide(options, want):
    """ORD-1, ORD-2, ORD-10, PEN-1, LGP-1."""
    assert one_slot(SamplingOptions(**options), PRIOR, vocab=VOCABULARY).deciding(0) == want


def test_drafts_count_as_tokens_of_the_window():
    """DST-2: only where penalties look at them."""
    plain = one_slot(SamplingOptions(**SAMPLED), PRIOR, vocab=VOCABULARY)
    penalised = one_slot(SamplingOptions(**SAMPLED, presence_penalty=1.0), PRIOR, vocab=VOCABULARY)
    assert (plain.deciding(0, 4), penalised.deciding(0, 4)) == (40, 47)


def test_a_long_window_is_not_counted():
    options = SamplingOptions(**SAMPLED, repeat_penalty=1.1, repeat_last_n=300)
    for length, want in ((256, 41), (257, None)):
        made = one_slot(options, [5] * length, vocab=VOCABULARY, context=300)
        assert made.deciding(0) == want


def test_all_logits_are_needed_while_any_slot_asks_for_log_probabilities():
    """LGP-2."""
    made = one_slot(SamplingOptions(temperature=0))
    made.add(1, SamplingOptions(logprobs=True), [])
    assert made.deciding(0) is None
    with pytest.raises(AssertionError, match="all logits of slot 0 are needed"):
        made.sample_best([0], best([1.0], [3]), [0])
    made.remove(1)
    assert made.sample_best([0], best([1.0], [3]), [0]).logprobs is None


def test_what_is_drawn_is_written_to_the_history():
    """BAT-1, PEN-3: the token drawn first is penalised from then on."""
    made = one_slot(SamplingOptions(temperature=0, presence_penalty=1.0))
    drawn = []
    for at in range(3):
        row = best([3.0, 2.5, 1.75, 0.0][: at + 1], [4, 2, 7, 0][: at + 1])
        drawn += made.sample_best([0], row, [at]).tokens.tolist()
    assert drawn == [4, 2, 4]


def test_a_row_without_a_token_is_refused_and_changes_nothing():
    """ORD-9: the slot is named, and NaN and infinity are the model's fault."""
    made = sampler()
    for slot in (3, 1):
        made.add(slot, SamplingOptions(temperature=0), [])
    rows = Best(torch.tensor([[1.0], [-torch.inf]]), torch.tensor([[2], [0]]))
    with pytest.raises(NoAllowedTokenError) as refused:
        made.sample_best([3, 1], rows, [0, 0])
    assert refused.value.slot == 1
    with pytest.raises(DamagedModelError, match="logits hold nan"):
        made.sample_best([3], best([-torch.inf], [-1]), [0])
    with pytest.raises(DamagedModelError, match="logits hold nan"):
        made.sample_best([3], best([2.0, -torch.inf], [4, -1]), [0])
    with pytest.raises(DamagedModelError, match="logits hold inf"):
        made.sample_best([3], best([torch.inf], [4]), [0])


def test_too_few_logits_are_an_error():
    made = one_slot(SamplingOptions(temperature=1.0, top_k=3, presence_penalty=1.0), [1, 2])
    with pytest.raises(AssertionError, match="5 logits of slot 0 are needed, not 4"):
        made.sample_best([0], best([4.0, 3.0, 2.0, 1.0], [0, 1, 2, 3]), [2])
    row = best([4.0, 3.0, 2.0, 1.0, 0.0], [0, 1, 2, 3, 4])
    with pytest.raises(AssertionError, match="6 logits of slot 0 are needed, not 5"):
        made.distribution_best(0, row, torch.tensor([3]))


def test_no_rows_give_no_tokens():
    """BAT-1."""
    empty = Best(torch.empty(0, 1), torch.empty(0, 1, dtype=torch.int64))
    assert sampler().sample_best([], empty, []).tokens.shape == (0,)


def test_a_penalty_that_blocks_the_last_token_leaves_none():
    """ORD-8, ORD-9: as a draw from all logits has it."""
    options = SamplingOptions(temperature=0, repeat_penalty=1e30)
    logits = torch.full((1, 8), -torch.inf).index_fill_(1, torch.tensor([5]), -1e10)
    whole = one_slot(options, [5]).sample([0], logits, [1]).tokens
    few = one_slot(options, [5]).sample_best([0], best([-1e10, -torch.inf], [5, 0]), [1]).tokens
    assert whole.tolist() == few.tolist() == [NO_TOKEN]
