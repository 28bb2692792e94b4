"""Distributions for drafting: alignment of chains, layouts, column maps (DST-1..11)."""

from dataclasses import replace

import pytest
import torch

from forerun.sampling.distribution import Distribution, first_best
from forerun.sampling.host_row import NO_TOKEN
from forerun.sampling.noise import Purpose
from forerun.sampling.options import SamplingOptions
from unit.sampling.making import DEVICES, no_waiting, one_slot, words

PLAIN = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0)
PENALISED = replace(PLAIN, presence_penalty=1.5, repeat_last_n=4, seed=3)
FLAT = torch.zeros(1, 8)
SPARSE = Distribution(torch.tensor([[0.25, 0.75], [0.5, 0.5]]), torch.tensor([[6, 2], [0, 7]]))
DENSE = Distribution(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))


def lowered(made, rows, drafts, **options):
    """The tokens that each row penalises, under flat logits."""
    chain = None if drafts is None else torch.tensor(drafts, dtype=torch.int64)
    found = made.distribution(0, FLAT.expand(rows, -1), chain, **options).dense(8)
    return [set((row < row.max()).nonzero().flatten().tolist()) for row in found]


def test_asking_changes_nothing():
    """DST-1: with and without a leading axis of one, neither history nor later draws move."""
    made, untouched = one_slot(PENALISED, [1, 2]), one_slot(PENALISED, [1, 2])
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    rows = made.distribution(0, logits, torch.tensor([3, 4]))
    same = made.distribution(0, logits[None], torch.tensor([3, 4]))
    assert torch.equal(rows.probs, same.probs)
    for at in range(2, 8):
        want = untouched.sample([0], logits[:1], [at]).tokens
        assert torch.equal(made.sample([0], logits[:1], [at]).tokens, want)


def test_a_verification_row_sees_the_drafts_before_it():
    """DST-2: depth 3, four rows."""
    made = one_slot(PENALISED, [7])
    assert lowered(made, 4, [1, 2, 3]) == [{7}, {7, 1}, {7, 1, 2}, {7, 1, 2, 3}]


def test_a_proposal_row_sees_the_whole_chain():
    """DST-2, F6: fewer rows than drafts align at the end."""
    made = one_slot(PENALISED, [7])
    assert lowered(made, 1, [1, 2]) == [{7, 1, 2}]
    assert lowered(made, 2, [1, 2, 3]) == [{7, 1, 2}, {7, 1, 2, 3}]


def test_more_rows_than_a_chain_can_explain_are_an_error_and_a_block_has_no_chain():
    """DST-3."""
    made = one_slot(PENALISED, [7])
    with pytest.raises(AssertionError, match="4 rows see a chain of 2 drafts"):
        lowered(made, 4, [1, 2])
    assert lowered(made, 5, None) == [{7}] * 5
    assert lowered(made, 1, []) == [{7}]


@pytest.mark.parametrize("device", DEVICES)
def test_drafts_push_the_oldest_tokens_out_of_the_window(device):
    """DST-4: a full ring, one that fills up on the way, and a chain longer than the window."""
    full = one_slot(PENALISED, [1, 4, 5, 6, 7], device=device)
    chain = torch.tensor([0, 1, 2, 3, 0], device=device)
    flat = FLAT.to(device)

    def seen(made, rows):
        found = made.distribution(0, flat.expand(rows, -1), chain).dense(8).cpu()
        return [set((row < row.max()).nonzero().flatten().tolist()) for row in found]

    assert seen(full, 6) == [
        {4, 5, 6, 7},
        {5, 6, 7, 0},
        {6, 7, 0, 1},
        {7, 0, 1, 2},
        {0, 1, 2, 3},
        {1, 2, 3, 0},
    ]
    filling = one_slot(PENALISED, [6, 7], device=device)
    assert seen(filling, 6) == [
        {6, 7},
        {6, 7, 0},
        {6, 7, 0, 1},
        {7, 0, 1, 2},
        {0, 1, 2, 3},
        {1, 2, 3, 0},
    ]
    assert seen(one_slot(PENALISED, [], device=device), 6)[:3] == [set(), {0}, {0, 1}]


def test_probabilities_are_looked_up_by_token_in_either_layout():
    """DST-5: absent tokens have 0, repeated ids add up."""
    assert SPARSE.prob(torch.tensor([2, 1])).tolist() == [0.75, 0.0]
    asked = torch.tensor([[6, 6, 1], [7, 0, 5]])
    assert SPARSE.probs_for_ids(asked).tolist() == [[0.25, 0.25, 0], [0.5, 0.5, 0]]
    assert DENSE.prob(torch.tensor([3])).tolist() == pytest.approx([0.4])
    twice = Distribution(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[4, 1, 4]]))
    assert twice.prob(torch.tensor([4])).tolist() == [0.75]


def test_wide_rows_are_looked_up_without_a_table_of_all_pairs():
    """DST-5: same answers, also for repeated ids and ids beyond the last."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, 3000, (2, 2000), generator=generator)
    wide = Distribution(torch.rand(2, 2000, generator=generator), ids)
    asked = torch.randint(0, 4000, (2, 100), generator=generator)
    few = torch.cat([wide.probs_for_ids(asked[:, n : n + 10]) for n in range(0, 100, 10)], -1)
    torch.testing.assert_close(wide.probs_for_ids(asked), few)


def test_token_ids_must_be_int64():
    """F2."""
    with pytest.raises(AssertionError, match="int32"):
        SPARSE.prob(torch.tensor([1, 2], dtype=torch.int32))
    with pytest.raises(AssertionError, match="int32"):
        Distribution(SPARSE.probs, SPARSE.ids.int())
    with pytest.raises(AssertionError, match="int32"):
        one_slot(PLAIN).distribution(0, FLAT, torch.tensor([1], dtype=torch.int32))


def test_rows_of_one_source_share_a_layout():
    """DST-7."""
    with pytest.raises(AssertionError, match="1 of 2 parts are sparse"):
        Distribution.cat([SPARSE, DENSE])
    assert Distribution.cat([DENSE, DENSE]).ids is None
    both = Distribution.cat([SPARSE.rows(slice(1)), SPARSE.rows(slice(1, 2))])
    assert torch.equal(both.probs, SPARSE.probs)
    assert torch.equal(both.ids, SPARSE.ids)


def test_an_empty_slice_is_empty():
    """F1: zero ends a slice, it does not mean the end."""
    assert len(SPARSE.rows(slice(0, 0))) == 0
    assert len(DENSE.rows(slice(0))) == 0
    assert SPARSE.rows(slice(0)).draw(torch.empty(0, dtype=torch.int64)).shape == (0,)


def test_log_probabilities_are_dense_and_minus_infinity_outside():
    """DST-8."""
    found = SPARSE.log_probs(8)
    assert (found.dtype, found.shape) == (torch.float32, (2, 8))
    assert (found > -torch.inf).nonzero().tolist() == [[0, 2], [0, 6], [1, 0], [1, 7]]
    torch.testing.assert_close(found.exp(), SPARSE.dense(8))
    torch.testing.assert_close(DENSE.log_probs(4).exp(), DENSE.probs)


@pytest.mark.parametrize("device", DEVICES)
def test_slicing_joining_moving_and_residuals_keep_to_the_device(device):
    """DST-10."""
    target = SPARSE.to(torch.device(device))
    draft = Distribution(target.probs.flip(0), target.ids)
    keys = torch.zeros(2, dtype=torch.int64, device=device)
    with no_waiting(device):
        joined = Distribution.cat([target.rows(slice(1)), target.rows(slice(1, 2))])
        left = joined.residual(draft)
        tokens = left.draw(keys)
        left.prob(tokens)
    assert tokens.device.type == device


def test_a_row_without_probability_draws_no_token():
    """ORD-9, ORD-6: in every layout, and beside a row that draws one."""
    empty = [
        Distribution(torch.tensor([[0.0, 0.0], [0.0, 1.0]]), torch.tensor([[4, 5], [4, 5]])),
        Distribution(torch.tensor([[0.0] * 6, [0, 0, 0, 0, 0, 1.0]])),
        Distribution(torch.tensor([[0.0], [1.0]]), torch.tensor([[0], [5]])),
    ]
    for rows in empty:
        assert rows.draw(torch.tensor([1, 2])).tolist() == [NO_TOKEN, 5]
    assert Distribution(torch.zeros(1, 6)).draw(torch.tensor([1])).tolist() == [NO_TOKEN]


@pytest.mark.parametrize("top_k", [0, 1, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_row_that_allows_nothing_has_no_probability_and_no_nan(temperature, top_k):
    """ORD-9, 03 GRM-3: the rows beside it are what they are alone."""
    options = replace(PLAIN, temperature=temperature, top_k=top_k)
    made = one_slot(options)
    logits = torch.arange(8.0).expand(2, -1)
    rows = made.distribution(0, logits, allowed=words([], [2, 3]))
    alone = made.distribution(0, logits[:1], allowed=words([2, 3]))
    assert rows.dense(8)[0].tolist() == [0.0] * 8
    assert torch.equal(rows.dense(8)[1], alone.dense(8)[0])


def test_equal_scores_after_the_noise_go_to_the_smaller_id():
    """ORD-6: whatever the order of the columns."""
    tied = torch.tensor([[1.0, 2.0, 2.0, 2.0]])
    assert first_best(tied, torch.tensor([[0, 9, 4, 6]])).tolist() == [4]
    assert first_best(tied, torch.tensor([0, 9, 6, 4])).tolist() == [4]
    assert first_best(tied, None).tolist() == [1]


@pytest.mark.parametrize("top_k", [0, 2])
def test_columns_of_a_reduced_vocabulary_are_the_tokens_of_its_map(top_k):
    """DST-11: filters act on the columns, the result is sparse in token ids."""
    made = one_slot(replace(PLAIN, top_k=top_k))
    rows = made.distribution(0, torch.tensor([[1.0, 2.0, 0.5]]), ids=torch.tensor([6, 0, 3]))
    want = torch.zeros(8)
    kept = [6, 0] if top_k else [6, 0, 3]
    want[kept] = torch.tensor([1.0, 2.0, 0.5])[: len(kept)].softmax(-1)
    torch.testing.assert_close(rows.dense(8)[0], want)
    assert rows.ids is not None


def test_a_greedy_head_proposes_a_token_and_ties_go_to_the_smaller_id():
    """DST-11, ORD-6."""
    made = one_slot(replace(PLAIN, temperature=0))
    rows = made.distribution(0, torch.tensor([[2.0, 2.0, 0.5]]), ids=torch.tensor([6, 2, 3]))
    assert (rows.ids.tolist(), rows.probs.tolist()) == ([[2]], [[1.0]])


@pytest.mark.parametrize("drafts", [None, [3, 1]])
def test_what_concerns_tokens_outside_the_map_is_ignored(drafts):
    """DST-11: mask, bias and penalties act on the tokens that the map holds, and only on those."""
    ids, inside = torch.tensor([6, 0, 3]), [6, 0, 3]
    options = replace(
        PENALISED, frequency_penalty=0.7, logit_bias=((0, 1.25), (5, 100.0), (3, -0.5))
    )
    made = one_slot(options, [0, 5, 0, 2])
    logits = torch.tensor([[1.0, 2.0, 0.5]])
    whole = torch.full((1, 8), -torch.inf)
    whole[:, inside] = logits
    chain = None if drafts is None else torch.tensor(drafts)
    for mask in (None, words([0, 3, 5])):
        found = made.distribution(0, logits, chain, ids=ids, allowed=mask)
        want = made.distribution(0, whole, chain, allowed=mask)
        torch.testing.assert_close(found.dense(8), want.dense(8))


def test_the_bias_shapes_drafts_and_target_alike():
    """ORD-10."""
    made = one_slot(replace(PLAIN, logit_bias=((4, 100.0),)))
    rows = made.distribution(0, FLAT.expand(3, -1), torch.tensor([1, 2]))
    assert rows.dense(8)[:, 4].tolist() == pytest.approx([1.0] * 3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("top_k", [0, 1, 3])
def test_sampling_and_asking_never_make_the_host_wait(device, top_k):
    """DST-10, BAT-1: the ids are the only thing to read, and the caller reads them."""
    options = replace(PENALISED, top_k=top_k, logit_bias=((1, 2.0),), logprobs=True)
    logits, drafts = torch.randn(3, 8, device=device), torch.tensor([1, 2], device=device)
    with no_waiting(device):
        made = one_slot(options, [1, 2, 3], device=device)
        made.sample([0], logits[:1], [3])
        made.commit(0, [4, 5])
        rows = made.distribution(0, logits, drafts)
        left = rows.residual(rows.rows(slice(0, 3))).draw(made.keys(0, [4, 5, 6], Purpose.RESIDUAL))
        made.logprobs(0, logits, left)
        made.sample([0], logits[:1], [7])
    assert left.tolist()


def test_no_token_has_no_probability_in_any_layout():
    """ORD-9: a row's places that stand for nothing, asked of another's distribution."""
    asked = torch.tensor([[NO_TOKEN, 0]])
    dense = Distribution(torch.tensor([[0.75, 0.25]]))
    sparse = Distribution(dense.probs, torch.tensor([[0, 1]]))
    for rows in (dense, sparse):
        assert rows.probs_for_ids(asked).tolist() == [[0, 0.75]]
