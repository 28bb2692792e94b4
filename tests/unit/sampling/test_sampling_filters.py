"""From scores to what may be drawn: order, filters, extremes; faults C01 and C09."""

import pytest
import torch

from forerun.sampling.filters import filtered, min_p, softmax, top_p
from forerun.sampling.options import SamplingOptions
from unit.sampling.making import DEVICES, one_slot

TINY = [1e-3, 1e-7, 1e-30, 1e-45]


def kept(logits, device="cpu", **options):
    """The tokens that can be drawn from one row of logits."""
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}
    row = filtered(torch.tensor([logits], device=device), SamplingOptions(**{**off, **options}))
    return set(row.dense(len(logits))[0].nonzero().flatten().tolist())


def test_temperature_comes_before_top_p_and_min_p():
    """ORD-1, C01: with temperature last other tokens would stay."""
    assert kept([3.0, 2.0, 1.0], top_p=0.8, temperature=0.5) == {0}
    assert kept([3.0, 2.0, 1.0], top_p=0.8, temperature=1.0) == {0, 1}
    assert kept([0.0, -2.0, -4.0], min_p=0.1, temperature=2.0) == {0, 1, 2}
    assert kept([0.0, -2.0, -4.0], min_p=0.1, temperature=1.0) == {0, 1}


@pytest.mark.parametrize("device", DEVICES)
def test_top_k_comes_before_top_p(device):
    """ORD-1, ORD-3: top-p weighs probabilities of what top-k left."""
    assert kept([0.0, 1.0, 1.0, 0.0], device=device, top_p=0.5, top_k=2) == {1}
    assert kept([0.0, 1.0, 1.0, 0.0], device=device, top_p=0.5) == {1, 2}


def test_a_mask_that_leaves_less_than_top_k_leaves_the_layout():
    """DST-7: rows of one slot can always be joined."""
    logits = torch.tensor([[1.0, -torch.inf, -torch.inf, 2.0], [4.0, 3.0, 2.0, 1.0]])
    options = SamplingOptions(temperature=1.0, top_k=3, top_p=1.0)
    each = [filtered(logits[row : row + 1], options) for row in range(2)]
    assert [row.probs.shape for row in each] == [(1, 3), (1, 3)]
    assert (each[0].probs > 0).sum() == 2


@pytest.mark.parametrize(("top_k", "columns"), [(1, 1), (2, 2), (4, 4), (0, None), (5, None)])
def test_top_k_makes_a_sparse_row_only_below_the_vocabulary(top_k, columns):
    """ORD-2, ORD-6: `topk` itself would raise past the width."""
    options = SamplingOptions(top_k=top_k, top_p=1.0)
    row = filtered(torch.tensor([[0.0, 3.0, 1.0, 2.0, -1.0]]), options)
    assert (None if row.ids is None else row.ids.shape[-1]) == columns
    wanted = {1, 3, 2, 0, 4} if columns is None else {1, 3, 2, 0} & set([1, 3, 2, 0][:columns])
    assert set(row.dense(5)[0].nonzero().flatten().tolist()) == wanted


@pytest.mark.parametrize(
    ("limit", "want"), [(0.0, 1), (1e-9, 1), (0.5, 1), (0.51, 2), (0.75, 2), (0.8, 3), (0.99, 4)]
)
def test_top_p_keeps_what_less_than_p_precedes(limit, want):
    """ORD-3: the first in any case; columns keep their places."""
    probs = torch.tensor([[0.125, 0.5, 0.125, 0.25]])
    got = top_p(probs, limit)
    assert torch.equal(got, probs * torch.tensor([[want > 2, want > 0, want > 3, want > 1]]))


def test_min_p_cuts_below_a_share_of_the_largest():
    """ORD-4."""
    probs = torch.tensor([[0.5, 0.25, 0.2, 0.05], [0.25, 0.25, 0.25, 0.25]])
    assert min_p(probs, 0.5).tolist() == [[0.5, 0.25, 0, 0], [0.25] * 4]
    assert min_p(probs, 1.0).tolist() == [[0.5, 0, 0, 0], [0.25] * 4]


def test_the_filtered_row_is_normalised_once_at_the_end():
    """ORD-5."""
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    options = SamplingOptions(temperature=1.0, top_k=0, top_p=0.7, min_p=0.55)
    want = torch.tensor([[0.5 / 0.8, 0.3 / 0.8, 0, 0]])
    torch.testing.assert_close(filtered(logits, options).probs, want)


@pytest.mark.parametrize("limit", [0.3, 0.9, 0.99, 0.9999])
@pytest.mark.parametrize("scale", [0.0, 0.5, 4.0])
def test_looking_at_candidates_alone_changes_nothing(limit, scale):
    """ORD-3: a CPU sorts only what top-p can keep, ties included."""
    scores = (torch.randn(3, 5000, generator=torch.Generator().manual_seed(1)) * scale).bfloat16()
    probs = softmax(scores.float(), 1.0)
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.double().cumsum(-1) - ordered
    want = torch.zeros_like(probs).scatter(-1, order, ordered * (before < limit))
    assert torch.equal(top_p(probs, limit), want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("magnitude", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize(
    "options",
    [
        *({"temperature": t} for t in TINY),
        *({"temperature": t, "top_k": 0, "top_p": 1.0} for t in TINY),
        {"top_p": 0.0},
        {"top_p": 1e-9},
        {"top_p": 0.0, "top_k": 0},
        {"min_p": 1.0},
        {"top_k": 1},
        {"temperature": 1e300},
        {"temperature": 1e300, "repeat_penalty": 1e300, "repeat_last_n": 4},
        {"repeat_penalty": 1e-300, "repeat_last_n": 4},
    ],
    ids=str,
)
def test_extreme_options_give_a_token_and_no_nan(options, magnitude, device):
    """ORD-8, C09, F13: logits up to 1e4, a blocked token among them."""
    logits = torch.tensor([[0.1, 1.0, -1.0, 0.7, -torch.inf, 0.3, -0.2, 0.6]], device=device)
    logits = logits * magnitude
    made = one_slot(SamplingOptions(**options), [0, 6], device=device)
    row = made.distribution(0, logits)
    assert row.probs.isfinite().all()
    assert row.probs.sum().item() == pytest.approx(1)
    token = int(made.sample([0], logits, [2]).tokens)
    assert 0 <= token < 8
    assert token != 4
    spread = magnitude * 0.3  # between the two best scores
    cold = options.get("temperature", 0.8) * 30 < spread
    sure = options.get("top_p", 1) < 0.1 or options in ({"min_p": 1.0}, {"top_k": 1})
    if (cold or sure) and "repeat_penalty" not in options:
        assert token == 1


def test_below_the_threshold_a_temperature_is_greedy():
    """ORD-8."""
    close = torch.tensor([[1.0, 1.0 + 1e-6]])
    assert filtered(close, SamplingOptions(temperature=9.9e-6)).probs.tolist() == [[1.0]]
    assert filtered(close, SamplingOptions(temperature=1e-5)).probs.shape == (1, 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.0}], ids=str)
def test_one_token_left_is_the_argmax_and_a_tie_goes_to_the_smaller_id(options, device):
    """ORD-6, F9, BAT-4: on every width, since a device may split a long row over its threads."""
    generator = torch.Generator().manual_seed(2)
    for vocab in (2, 31, 1000, 49_152):
        logits = torch.randint(0, 3, (1, vocab), generator=generator).to(torch.bfloat16)
        first = logits[0].tolist().index(logits.max().item())
        made = one_slot(SamplingOptions(**options), vocab=vocab, device=device)
        row = made.distribution(0, logits.to(device))
        assert row.ids.tolist() == [[first]]
        assert made.sample([0], logits.to(device), [0]).tokens.tolist() == [first]
