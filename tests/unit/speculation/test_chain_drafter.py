"""Chain drafters, call by call: what heads are fed, and what their caches hold (spec 03 MTP)."""

import dataclasses
from typing import cast

import pytest
import torch

from fixtures.toy_head import (
    EOS,
    GREEDY,
    STEP,
    VOCABULARY,
    ChainRig,
    RankedToyHead,
    ToyHead,
    pairs,
)
from forerun.contract.media import Layout
from forerun.sampling.noise import Purpose
from forerun.sampling.options import SamplingOptions

HEADS = pytest.mark.parametrize("cached", [True, False])


def test_a_single_position_head_drafts_from_where_the_target_is():
    """T2, MTP-7: only token and hidden state advance; nothing is written."""
    rig = ChainRig(ToyHead(cached=False))
    rig.commit([0], 0)
    assert rig.propose(1) == [2, 3, 4, EOS]
    assert rig.head.calls == [(0, [1]), (0, [2]), (0, [3]), (0, [4])]
    assert rig.head.fed == [[1], [1 + STEP], [1 + 2 * STEP], [1 + 3 * STEP]]
    assert (rig.drafter.caches, rig.drafter.look_ahead) == ((), 0)


def test_a_cached_head_writes_the_pairs_and_then_a_position_a_step():
    """T5, MTP-1, MTP-7: step 0 has no call of its own; entries of refused drafts are replaced by
    pairs with the target's rows."""
    rig = ChainRig()
    rig.commit([9, 8], 0)
    assert rig.propose(1) == [2, 3, 4, EOS]
    assert rig.head.calls == [(0, [8, 1]), (2, [2]), (3, [3]), (4, [4])]
    drafted = [(2, 2 + STEP), (3, 2 + 2 * STEP), (4, 2 + 3 * STEP)]
    assert rig.pairs == [*pairs([8, 1]), *drafted]
    rig.commit([1, 2], 2)  # of four drafts one was right
    rig.head.calls.clear()
    assert rig.propose(7, 2) == [0, 0]
    assert rig.head.calls == [(2, [2, 7]), (4, [0])]
    assert rig.pairs == [*pairs([8, 1, 2, 7]), (0, 4 + STEP)]
    rig.session.close()
    assert rig.pairs == pairs([8, 1, 2, 7])


def test_every_draft_may_be_right():
    rig = ChainRig()
    rig.commit([9], 0)
    assert rig.propose(1) == [2, 3, 4, EOS]
    rig.commit([1, 2, 3, 4, EOS], 1)
    rig.session.settle(6)
    assert rig.pairs == pairs([1, 2, 3, 4, EOS, 6])


def test_a_long_run_is_one_forward():
    """T8, MTP-5: the cap triggers, it does not split; settling adds the pair that was open."""
    rig = ChainRig()
    rig.commit([1] * 300, 0)
    assert [(at, len(tokens)) for at, tokens in rig.head.calls] == [(0, 299)]
    rig.session.settle(2)
    assert rig.head.calls[1:] == [(299, [2])]


def test_short_runs_wait_for_the_cap():
    """MTP-5: a never-drafting session keeps less than the cap of rows alive."""
    rig = ChainRig(flush_at=7)
    for position in range(20):
        rig.commit([position % 9], position)
    assert [(at, len(tokens)) for at, tokens in rig.head.calls] == [(0, 7), (7, 7)]
    assert rig.pairs == pairs([token % 9 for token in range(1, 15)])


def test_a_restored_prefix_is_not_written_again_but_for_its_boundary():
    """T9, MTP-10, DRF-6: a cut leaves the pair of the boundary token to be made with the token
    that really follows it; tokens whose pair exists are skipped (MTP-3)."""
    rig = ChainRig()
    rig.commit([9, 1, 2, 3], 0)
    rig.session.settle(4)
    rig.session.close()
    assert rig.pairs == pairs([1, 2, 3, 4])
    assert rig.caches[0].restore(None, 2)
    rig.head.calls.clear()
    rig.session = rig.drafter.open(rig.request)
    rig.commit([2, 7], 2)  # position 2 is evaluated again: 7 follows it now, not 3
    rig.session.settle(8)
    assert rig.head.calls == [(2, [7, 8])]
    assert rig.pairs == pairs([1, 2, 7, 8])


def test_an_open_pair_is_completed_by_the_next_run():
    """MTP-2, MTP-3: the pair frontier's row goes with the first token of the next run."""
    rig = ChainRig()
    rig.commit([9, 8], 0)
    rig.commit([7, 6], 2)
    rig.session.settle(5)
    assert rig.head.calls == [(0, [8, 7, 6, 5])]
    assert rig.pairs == pairs([8, 7, 6, 5])


@HEADS
def test_a_gap_is_an_error(cached):
    """DRF-2, MTP-3."""
    rig = ChainRig(ToyHead(cached=cached))
    rig.commit([1, 2], 0)
    for position in (1, 3):
        with pytest.raises(AssertionError, match="ended at 2"):
            rig.commit([3], position)


def test_settling_writes_a_pair_once():
    """MTP-4, MTP-6: nothing to settle, nothing pending: no forward."""
    rig = ChainRig()
    rig.session.settle(3)
    assert rig.head.calls == []
    rig.commit([1], 0)
    rig.session.settle(3)
    rig.session.settle(3)
    assert rig.head.calls == [(0, [3])]
    rig.commit([3], 1)  # its pair is there
    rig.session.settle(4)
    assert rig.head.calls == [(0, [3]), (1, [4])]


@HEADS
def test_nothing_is_proposed_before_the_target_has_said_anything(cached):
    """MTP-7, DRF-4: unprimed, or asked for nothing."""
    rig = ChainRig(ToyHead(cached=cached))
    assert rig.propose(1) is None
    rig.commit([1], 0)
    assert rig.propose(2, 0) is None
    assert rig.head.calls == []
    rig.session.close()
    assert rig.propose(2) is None


@HEADS
def test_asked_again_it_proposes_the_same(cached):
    """MTP-6: what the last chain wrote is rewound first, though nothing waits to be written."""
    rig = ChainRig(ToyHead(cached=cached))
    rig.commit([9], 0)
    assert rig.propose(1) == rig.propose(1) == [2, 3, 4, EOS]
    assert rig.propose(1, 2) == [2, 3]


@HEADS
def test_rows_outlive_the_forwards_they_came_from(cached):
    """DRF-7, MTP-6: reported rows, the pair frontier's and held outputs are copies."""
    rig = ChainRig(ToyHead(cached=cached, replaying=True))
    taps = rig.taps(0, 2)
    rig.session.committed([9, 8], taps, 0)
    taps.fill_(torch.nan)
    rig.session.settle(1)
    assert rig.propose(1) == rig.propose(1) == [2, 3, 4, EOS]
    assert torch.tensor([row for rows in rig.head.fed for row in rows]).isfinite().all()


class IdentityHead(ToyHead):
    """Is fed rows as they come."""

    def condition(self, taps):
        return taps[:, :1]


def test_rows_are_copies_where_the_head_maps_nothing():
    """DRF-7: what `condition` hands back may be the target's own memory."""
    rig = ChainRig(IdentityHead())
    taps = rig.taps(0, 3)
    rig.session.committed([9, 8, 7], taps, 0)
    taps.fill_(torch.nan)
    rig.session.settle(6)
    assert [row for _, row in rig.pairs] == [0, 1, 2]


@HEADS
def test_the_last_row_of_a_run_does_not_hold_the_others(cached):
    """DRF-7: a slice would keep the memory of its whole run until the next one."""
    rig = ChainRig(ToyHead(cached=cached))
    rig.commit([9, 8, 7, 6], 0)
    rig.session.settle(5)
    row = rig.session._row
    assert row.untyped_storage().nbytes() == row.nbytes


@HEADS
def test_penalties_shape_the_chain_as_they_shape_its_verification(cached):
    """MTP-8: earlier drafts count as history. Without them this head proposes 3 3 3."""
    options = SamplingOptions(temperature=0.0, repeat_penalty=1.0, presence_penalty=2.0)
    rig = ChainRig(ToyHead(lambda _: 3, cached=cached, peak=1.0), options)
    rig.commit([9], 0)
    proposal = rig.session.propose(1, 3)
    tokens = proposal.tokens
    assert tokens.tolist() == [3, 0, 1]
    logits = torch.eye(VOCABULARY)[[3, 3, 3]]
    verified = rig.sampler.distribution(0, logits, tokens[:2])
    assert torch.equal(verified.dense(VOCABULARY), proposal.rows.dense(VOCABULARY))


SAMPLED = [
    SamplingOptions(temperature=1.5, repeat_penalty=1.0, top_k=0, top_p=1.0),
    SamplingOptions(temperature=0.7, top_k=5, repeat_penalty=1.3),
    SamplingOptions(temperature=1.5, top_k=7, top_p=0.9, seed=11, repeat_penalty=1.0),
]


@HEADS
@pytest.mark.parametrize("options", SAMPLED)
def test_drafts_are_drawn_from_their_rows_with_the_noise_of_their_places(cached, options):
    """MTP-8, 04 SED-1: with a seed the target's own noise, and without noise for proposals."""
    head = ToyHead(lambda token: (token + 3) % VOCABULARY, cached=cached, peak=2.0)
    rig = ChainRig(head, options, prior=[3, 4])
    rig.commit([9, 8, 7], 0)
    proposal = rig.session.propose(6, 5)
    purpose = Purpose.TARGET if options.seed >= 0 else Purpose.PROPOSAL
    # the current token stands at 3
    keys = rig.sampler.keys(0, range(4, 9), purpose)
    assert torch.equal(proposal.rows.draw(keys), proposal.tokens)
    assert proposal.host_tokens == tuple(proposal.tokens.tolist())


@HEADS
@pytest.mark.parametrize("columns", [None, [0, 2, 3, 4, 6, 9, 12, 15]])
@pytest.mark.parametrize("options", [GREEDY, *SAMPLED])
def test_the_largest_logits_propose_what_all_of_them_do(cached, columns, options):
    """A head that ranks its logits is asked for those that decide; rows and drafts are the same."""
    kinds = {"cached": cached, "columns": columns, "peak": 2.0}
    seeded = dataclasses.replace(options, seed=5)
    made = []
    for kind in (ToyHead, RankedToyHead):
        rig = ChainRig(kind(lambda token: (token + 3) % VOCABULARY, **kinds), seeded)
        rig.commit([9, 8, 7], 0)
        made.append(rig.session.propose(6, 4))
    plain, ranked = made
    assert rig.head.asked or options.top_k == 0
    assert torch.equal(plain.tokens, ranked.tokens)
    assert torch.equal(plain.rows.dense(VOCABULARY), ranked.rows.dense(VOCABULARY))


@HEADS
def test_proposals_are_sparse_in_target_ids(cached):
    """EGL-8: a token that the head does not know has probability 0, and is never proposed."""
    columns = [1, 3, 4, 11]
    options = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, repeat_penalty=1.0)
    rig = ChainRig(ToyHead(lambda _: 2, cached=cached, columns=columns, peak=1.0), options)
    rig.commit([9], 0)
    proposal = rig.session.propose(1, 6)
    dense = proposal.rows.dense(VOCABULARY)
    assert set(proposal.tokens.tolist()) <= set(columns)
    assert torch.equal(dense.nonzero()[:, 1].unique(), torch.tensor(columns))
    assert torch.allclose(dense.sum(-1), torch.ones(6))


@HEADS
@pytest.mark.parametrize("options", [GREEDY, *SAMPLED])
def test_nothing_is_read_back_while_it_proposes(cached, options):
    """MTP-9: on a device without values every read would raise."""
    rig = ChainRig(ToyHead(cached=cached, device="meta"), options)
    rig.commit([9, 8], 0)
    proposal = rig.session.propose(1, 4)
    assert proposal.tokens.shape == (4,)
    assert proposal.tokens.is_meta
    assert proposal.host_tokens is None


@HEADS
def test_the_layout_of_the_request_is_stamped_on_every_forward(cached):
    """MTP-12."""
    layout = cast(Layout, object())
    rig = ChainRig(ToyHead(cached=cached), layout=layout)
    rig.commit([9, 8], 0)
    rig.propose(1)
    assert len(rig.head.batches) == 4
    assert all(batch.layout is layout for batch in rig.head.batches)


@pytest.mark.parametrize("fails_in", [1, 2, 3])
def test_a_head_that_breaks_off_leaves_no_draft_behind(fails_in):
    """DRF-5, RND-10: what waited is written at close."""
    rig = ChainRig()
    rig.commit([9, 8], 0)
    rig.head.fails_in = fails_in
    with pytest.raises(RuntimeError, match="broke"):
        rig.session.propose(1, 4)
    rig.session.close()
    assert rig.pairs == pairs([8, 1])
