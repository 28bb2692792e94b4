"""Penalties on the tokens of a window (PEN); rows C03 and C05 of the reported faults."""

import pytest
import torch

from forerun.sampling.options import SamplingOptions
from forerun.sampling.penalties import penalise
from forerun.sampling.penalty_history import Window
from unit.sampling.making import one_slot

LOGITS = torch.tensor([[0.5, 0.5, 0.5, 0.5, 0.5, 2.0, -1.0, 0.0]])


def penalised(tokens, live=None, scores=LOGITS, **options):
    window = Window(torch.tensor([tokens]), None if live is None else torch.tensor([live]))
    return penalise(scores, window, SamplingOptions(**options))[0].tolist()


def test_a_repeat_penalty_lowers_scores_of_either_sign_once():
    """PEN-1, PEN-2, C05: dividing a negative score would reward the repeat."""
    got = penalised([5, 6, 7, 5, 5], repeat_penalty=2.0)
    assert got == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.5, 1.0, -2.0, 0.0], abs=1e-6)


def test_presence_counts_a_token_once_and_frequency_every_time():
    """PEN-3, PEN-4, C05: count 3, frequency 0.5, presence 0.2 take 1.7."""
    got = penalised([5, 5, 5], presence_penalty=0.2, frequency_penalty=0.5)
    assert got == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.5, 2.0 - 1.7, -1.0, 0.0], abs=1e-6)


def test_the_repeat_penalty_comes_first():
    """PEN-3: 2 / 2 - 1.7, not (2 - 1.7) / 2."""
    got = penalised([5, 5, 5], repeat_penalty=2.0, presence_penalty=0.2, frequency_penalty=0.5)
    assert got[5] == pytest.approx(1.0 - 1.7, abs=1e-6)


def test_places_without_a_token_have_no_effect():
    """PEN-5: an unfilled ring holds zeros, which are not token 0."""
    both = {"repeat_penalty": 2.0, "frequency_penalty": 0.5}
    assert penalised([0, 5, 0], [False, True, False], **both) == penalised([5], **both)
    assert penalised([0, 0], [False, False], **both) == LOGITS[0].tolist()


def test_a_blocked_token_stays_blocked_and_the_given_scores_stay_as_they_are():
    """PEN-2, ORD-7."""
    scores = LOGITS.clone()
    scores[0, 5] = -torch.inf
    before = scores.clone()
    assert penalised([5], scores=scores, repeat_penalty=0.5, presence_penalty=-2.0)[5] == -torch.inf
    assert torch.equal(scores, before)


def test_no_history_means_no_change():
    """PEN-5."""
    made = one_slot(SamplingOptions(temperature=0, repeat_penalty=1.5))
    assert made.sample([0], LOGITS, [0]).tokens.tolist() == [5]


@pytest.mark.parametrize(("last", "seen"), [(0, False), (64, False), (90, True), (-1, True)])
@pytest.mark.parametrize(
    "penalty", [{"repeat_penalty": 2.0}, {"presence_penalty": 1.0}, {"frequency_penalty": 1.0}]
)
def test_the_window_reaches_as_far_back_as_asked(last, seen, penalty):
    """C03, F8: 100 tokens, 5 only at place 20; -1 is the whole context, 0 none, 64 too short."""
    prior = [1] * 20 + [5] + [1] * 79
    options = SamplingOptions(repeat_last_n=last, **penalty)
    made = one_slot(options, prior, context=128)
    probs = made.distribution(0, LOGITS).dense(8)[0]
    plain = one_slot(SamplingOptions(), prior).distribution(0, LOGITS).dense(8)[0]
    assert (probs[5] < plain[5] - 1e-3) == seen


def test_openai_penalties_work_without_a_window():
    """C03: clients that know no repeat_last_n get the default of 64."""
    made = one_slot(SamplingOptions.from_layers({"presence_penalty": 2.0, "temperature": 0}), [5])
    nearly = LOGITS.clone()
    nearly[0, 0] = 0.1
    assert made.sample([0], nearly, [1]).tokens.tolist() == [1]


def test_greedy_with_penalties_takes_the_best_penalised_score():
    """F5, BAT-4: and what it takes is penalised in its turn."""
    made = one_slot(SamplingOptions(temperature=0, repeat_penalty=1.5, repeat_last_n=-1))
    logits = torch.tensor([[3.0, 2.5, 2.1, 1.9, 0, 0, 0, 0]])
    taken = [int(made.sample([0], logits, [at]).tokens) for at in range(6)]
    assert taken == [0, 1, 2, 0, 0, 0]  # 3 / 1.5 is 2, which beats the 1.9 of token 3 for good
