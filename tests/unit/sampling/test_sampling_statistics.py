"""What is drawn is distributed as the filtered row says (F11)."""

import pytest
import torch

from forerun.sampling.distribution import Distribution
from forerun.sampling.noise import Purpose, draw_key, seed_key
from forerun.sampling.options import SamplingOptions
from unit.sampling.making import DEVICES, chi_square, one_slot

DRAWS = 20_000
# The 1 - 1e-6 quantile of chi-square with 7 degrees of freedom, the most that 8 tokens have; with
# fewer the bound is looser still. Seeds are fixed, so a pass is a pass for good.
LIMIT = 40.5
RARE = torch.tensor([[0.4, 0.25, 0.15, 0.1, 0.06, 0.03, 0.009, 0.001]])


def counted(tokens):
    return torch.bincount(tokens.cpu(), minlength=8).tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("purpose", list(Purpose))
@pytest.mark.parametrize("sparse", [False, True])
def test_draws_follow_their_row_down_to_a_probability_of_a_thousandth(sparse, purpose, device):
    """F11, SED-1: one seed, 20,000 positions, 8 tokens."""
    made = one_slot(SamplingOptions(seed=1), device=device)
    ids = torch.arange(8).flip(0)[None]
    row = Distribution(RARE[:, ids[0]], ids) if sparse else Distribution(RARE)
    keys = made.keys(0, range(DRAWS), purpose)
    ids = None if row.ids is None else row.ids.expand(DRAWS, -1)
    many = Distribution(row.probs.expand(DRAWS, -1), ids).to(torch.device(device))
    assert chi_square(counted(many.draw(keys)), RARE[0].tolist()) < LIMIT


def test_draws_follow_their_row_over_seeds_too():
    """F11: one position, 20,000 seeds, as many short requests with seeds in a row make them."""
    keys = [draw_key(seed_key(seed), 17, Purpose.TARGET) for seed in range(DRAWS)]
    drawn = Distribution(RARE.expand(DRAWS, -1)).draw(torch.tensor(keys))
    assert chi_square(counted(drawn), RARE[0].tolist()) < LIMIT


@pytest.mark.parametrize(
    "options",
    [
        SamplingOptions(seed=2, temperature=0.7, top_p=0.9),
        SamplingOptions(seed=3, temperature=1.5, top_k=5, min_p=0.02, presence_penalty=0.5),
        SamplingOptions(seed=4, temperature=1.0, top_k=0, top_p=1.0),
    ],
    ids=str,
)
def test_sampled_tokens_follow_the_filtered_row(options):
    """F11: what `sample` draws, by the probabilities that `distribution` shows."""
    made = one_slot(options, [1, 2, 1])
    row = made.distribution(0, RARE.log())
    want = row.dense(8)[0].tolist()
    many = Distribution(
        row.probs.expand(DRAWS, -1), None if row.ids is None else row.ids.expand(DRAWS, -1)
    )
    drawn = many.draw(made.keys(0, range(DRAWS), Purpose.TARGET))
    assert chi_square(counted(drawn), want) < LIMIT
    for at in range(20):
        fresh = one_slot(options, [1, 2, 1])
        assert fresh.sample([0], RARE.log(), [at]).tokens[0] == drawn[at]


def test_a_residual_is_drawn_exactly():
    """F11, DST-6: what rejection leaves over, beside a draft that is sparse."""
    draft = Distribution(torch.tensor([[0.7, 0.3]]), torch.tensor([[0, 7]]))
    left = Distribution(RARE).residual(draft)
    assert left.probs[0, 0] == 0
    assert left.probs[0, 7] == 0
    keys = one_slot(SamplingOptions(seed=5)).keys(0, range(DRAWS), Purpose.RESIDUAL)
    drawn = Distribution(left.probs.expand(DRAWS, -1)).draw(keys)
    assert chi_square(counted(drawn), left.probs[0].tolist()) < LIMIT
