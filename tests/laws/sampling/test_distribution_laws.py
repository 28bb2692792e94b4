"""Probabilities and residuals are sums over the vocabulary, in all layouts (DST-5..8, F15)."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from forerun.sampling.distribution import Distribution
from forerun.sampling.noise import Purpose, draw_key, seed_key

VOCAB = 5
WEIGHTS = st.lists(st.integers(0, 4), min_size=VOCAB, max_size=VOCAB).filter(any)
PERMUTATION = st.permutations(range(VOCAB))
# Dense; sparse over all tokens in some order; sparse over those that can be drawn alone.
LAYOUT = st.tuples(st.sampled_from(["dense", "shuffled", "tight"]), PERMUTATION)


def plain(weights):
    return [weight / sum(weights) for weight in weights]


def row(weights, layout):
    kind, order = layout
    probs = torch.tensor([plain(weights)])
    if kind == "dense":
        return Distribution(probs)
    ids = torch.tensor([[token for token in order if kind == "shuffled" or weights[token]]])
    return Distribution(probs.gather(-1, ids), ids)


@given(weights=WEIGHTS, layout=LAYOUT)
def test_every_layout_says_the_same(weights, layout):
    """DST-5, DST-8: token by token, several at once, and as log-probabilities."""
    given_row, want = row(weights, layout), torch.tensor([plain(weights)])
    for token in range(VOCAB):
        assert torch.equal(given_row.prob(torch.tensor([token])), want[:, token])
    everything = torch.arange(VOCAB)[None]
    assert torch.equal(given_row.probs_for_ids(everything), want)
    assert torch.equal(given_row.log_probs(VOCAB), want.log())


@given(target=WEIGHTS, draft=WEIGHTS, of_target=LAYOUT, of_draft=LAYOUT)
def test_a_residual_is_what_the_draft_leaves_over(target, draft, of_target, of_draft):
    """DST-6, F15, RND-7: in the target's layout, for each of the nine pairs and a point mass."""
    p, q = plain(target), plain(draft)
    left = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    want = [x / sum(left) for x in left] if sum(left) > 1e-6 else p
    made = row(target, of_target)
    found = made.residual(row(draft, of_draft))
    torch.testing.assert_close(found.dense(VOCAB), torch.tensor([want]), atol=1e-6, rtol=0)
    assert found.ids is made.ids


@given(weights=WEIGHTS, layout=LAYOUT, seed=st.integers(0, 50), position=st.integers(0, 50))
def test_equal_keys_draw_equal_tokens_in_every_layout(weights, layout, seed, position):
    """SED-2, ORD-6: how a seeded draft meets its target."""
    keys = torch.tensor([draw_key(seed_key(seed), position, Purpose.TARGET)])
    made = row(weights, layout)
    token = made.draw(keys)
    assert torch.equal(token, row(weights, ("dense", None)).draw(keys))
    assert made.prob(token) > 0


@given(
    rows=st.lists(WEIGHTS, min_size=1, max_size=4),
    kind=st.sampled_from(["dense", "shuffled"]),
    order=PERMUTATION,
    data=st.data(),
)
def test_cutting_and_joining_rows_loses_nothing(rows, kind, order, data):
    """DST-7, DST-10, F1."""
    whole = Distribution.cat([row(weights, (kind, order)) for weights in rows])
    cut = data.draw(st.integers(0, len(rows)))
    again = Distribution.cat([whole.rows(slice(0, cut)), whole.rows(slice(cut, None))])
    assert len(whole.rows(slice(0, cut))) == cut
    assert torch.equal(again.dense(VOCAB), torch.tensor([plain(weights) for weights in rows]))
    keys = torch.arange(len(rows))
    drawn = [int(whole.rows(slice(n, n + 1)).draw(keys[n : n + 1])) for n in range(len(rows))]
    assert whole.draw(keys).tolist() == drawn
