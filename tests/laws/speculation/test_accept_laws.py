"""Laws of one verification, added up over all that can be drawn, not sampled (03 RND, T13)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.sampling.distribution import Distribution
from forerun.sampling.host_row import NO_TOKEN
from forerun.sampling.noise import Purpose, draw_key, row_uniform, seed_key
from forerun.sampling.options import SamplingOptions
from forerun.speculation.accept import (
    Keys,
    seeded_at_once,
    standing,
    unseeded_at_once,
    verify,
)
from unit.sampling.making import DEVICES, no_waiting, one_slot

VOCAB = 4
WEIGHTS = st.lists(st.integers(0, 5), min_size=VOCAB, max_size=VOCAB).filter(any)
EMPTY = [0] * VOCAB  # a row that allows no token
LAYOUT = st.sampled_from(["dense", "sparse", "tight"])
DEPTH = st.integers(1, 4)


def rows(weights, layout):
    """`tight` keeps what can be drawn in some row; `sparse` all tokens, in an order of its own."""
    probs = torch.tensor(weights, dtype=torch.float32).view(-1, VOCAB)
    probs = probs / probs.sum(-1, keepdim=True).clamp_min(1)
    if layout == "dense":
        return Distribution(probs)
    order = torch.tensor([2, 0, 3, 1])
    if layout == "tight":
        order = order[(probs[:, order] > 0).any(0)]
    ids = order.expand(len(weights), -1)
    return Distribution(probs.gather(-1, ids), ids)


def noise(depth, seed=0, start=0):
    def keys(purpose, count):
        drawn = [draw_key(seed_key(seed), start + place, purpose) for place in range(count)]
        return torch.tensor(drawn, dtype=torch.int64)

    return Keys(
        keys(Purpose.TARGET, depth + 1),
        keys(Purpose.ACCEPT, depth),
        keys(Purpose.RESIDUAL, depth + 1),
    )


def key_between(low, high):
    """Acceptance noise whose uniform lies in between."""
    for position in range(10_000):
        key = torch.tensor([draw_key(seed_key(7), position, Purpose.ACCEPT)])
        if low < float(row_uniform(key)) < high:
            return key
    raise AssertionError((low, high))


@settings(deadline=None)
@given(target=WEIGHTS, draft=WEIGHTS, of_target=LAYOUT, of_draft=LAYOUT)
def test_the_text_follows_the_target_exactly(target, draft, of_target, of_draft):
    """RND-6, RND-7, T13, GEN-6: over all that the draft may propose, in every pair of layouts."""
    p, q = rows([target], "dense").probs[0], rows([draft], "dense").probs[0]
    asked, proposal = rows([target, target], of_target), rows([draft], of_draft)
    left = asked.rows(slice(1)).residual(proposal).dense(VOCAB)[0]
    after = torch.zeros(VOCAB)
    for token in q.nonzero().flatten().tolist():
        keep = min(1.0, float(p[token] / q[token]))
        after[token] += q[token] * keep
        after += q[token] * (1 - keep) * left
        if keep > 0:
            assert accepts(asked, proposal, token, key_between(keep - 0.05, keep - 1e-4)) == 1
        if keep < 1:
            assert accepts(asked, proposal, token, key_between(keep + 1e-4, keep + 0.05)) == 0
    torch.testing.assert_close(after, p, atol=1e-6, rtol=0)


def accepts(target, proposal, token, key):
    drafts = torch.tensor([token])
    keys = Keys(accept=key, residual=noise(1).residual)
    return int(verify(target, proposal, drafts, keys, seeded=False).accepted)


@settings(deadline=None)
@given(
    target=st.lists(st.one_of(WEIGHTS, st.just(EMPTY)), min_size=5, max_size=5),
    draft=st.lists(WEIGHTS, min_size=4, max_size=4),
    of_target=LAYOUT,
    of_draft=LAYOUT,
    depth=DEPTH,
    seed=st.integers(0, 20),
)
def test_a_round_is_its_places_one_by_one(target, draft, of_target, of_draft, depth, seed):
    """RND-4, RND-6, RND-7: the leading run that stands, then a draw of what its row leaves over."""
    asked, proposal = rows(target[: depth + 1], of_target), rows(draft[:depth], of_draft)
    drafts = proposal.draw(noise(depth, seed + 50).target[:depth])
    keys = noise(depth, seed)
    stands = standing(asked, proposal, drafts, keys).tolist()
    accepted = [*stands, False].index(False)
    row = slice(accepted, accepted + 1)
    rest = asked.rows(row)
    if accepted < depth:
        rest = rest.residual(proposal.rows(row))
    token = int(rest.draw(keys.residual[row]))
    for verdict in (
        verify(asked, proposal, drafts, keys, seeded=False),
        unseeded_at_once(asked, proposal, drafts, keys),
    ):
        assert int(verdict.accepted) == accepted
        assert int(verdict.continuations[accepted]) == token
        assert verdict.continuations.shape == (depth + 1,)
    if target[accepted] == EMPTY:
        assert token == NO_TOKEN
    else:
        assert target[accepted][token] > 0


@settings(deadline=None)
@given(
    target=st.lists(WEIGHTS, min_size=5, max_size=5),
    draft=st.lists(WEIGHTS, min_size=4, max_size=4),
    of_target=LAYOUT,
    of_draft=LAYOUT,
    depth=DEPTH,
    seed=st.integers(0, 50),
)
def test_a_seeded_text_is_what_the_target_draws(target, draft, of_target, of_draft, depth, seed):
    """T12, RND-6, GEN-6, 04 SED-2: whatever was drafted, and with the same noise on both sides."""
    asked, proposal = rows(target[: depth + 1], of_target), rows(draft[:depth], of_draft)
    keys = noise(depth, seed)
    plain = asked.draw(keys.target).tolist()
    drafts = proposal.draw(keys.target[:depth])
    for verdict in (
        verify(asked, proposal, drafts, keys, seeded=True),
        seeded_at_once(asked, drafts, keys),
    ):
        accepted = int(verdict.accepted)
        text = [*drafts[:accepted].tolist(), int(verdict.continuations[accepted])]
        assert text == plain[: accepted + 1]
        assert accepted == depth or drafts[accepted] != plain[accepted]


@settings(deadline=None)
@given(
    target=st.lists(WEIGHTS, min_size=2, max_size=5),
    of_target=LAYOUT,
    of_draft=LAYOUT,
    seeded=st.booleans(),
    seed=st.integers(0, 20),
)
def test_a_draft_from_the_targets_own_rows_is_always_accepted(
    target, of_target, of_draft, seeded, seed
):
    """T13, RND-6: p = q, at any temperature and with either coupling; the bonus is a plain draw."""
    depth = len(target) - 1
    asked, proposal = rows(target, of_target), rows(target[:-1], of_draft)
    keys = noise(depth, seed)
    drafts = proposal.draw(keys.target[:depth])
    verdict = verify(asked, proposal, drafts, keys, seeded=seeded)
    last = slice(depth, depth + 1)
    bonus = asked.rows(last).draw((keys.target if seeded else keys.residual)[last])
    assert int(verdict.accepted) == depth
    assert int(verdict.continuations[depth]) == int(bonus)


@settings(deadline=None)
@given(
    tokens=st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=6),
    drafts=st.lists(st.integers(0, VOCAB - 1), min_size=5, max_size=5),
    seeded=st.booleans(),
    blocked=st.booleans(),
)
def test_a_greedy_round_keeps_what_equals_the_argmax(tokens, drafts, seeded, blocked):
    """GEN-5, 04 SED-5: point masses need no noise; a row without a token keeps nothing."""
    depth = len(tokens) - 1
    probs = torch.ones(depth + 1, 1)
    if blocked:
        probs[-2:] = 0
    target = Distribution(probs, torch.tensor(tokens)[:, None])
    given_drafts = torch.tensor(drafts[:depth])
    proposal = Distribution(torch.ones(depth, 1), given_drafts[:, None])
    verdict = verify(target, proposal, given_drafts, Keys(), seeded=seeded)
    allowed = [token if prob else NO_TOKEN for token, prob in zip(tokens, probs, strict=True)]
    same = [a == b for a, b in zip(allowed, drafts, strict=False)]
    assert int(verdict.accepted) == [*same[:depth], False].index(False)
    assert verdict.continuations.tolist() == allowed


@pytest.mark.parametrize("of_draft", ["dense", "sparse", "tight"])
@pytest.mark.parametrize("of_target", ["dense", "sparse", "tight"])
@pytest.mark.parametrize(
    ("target", "draft", "token"),
    [
        ([0, 0, 1, 0], [0, 0, 1, 0], 2),  # one and the same token
        ([1, 1, 0, 0], [0, 0, 1, 1], 3),  # nothing in common
        ([0, 0, 1, 0], [1, 1, 1, 1], 0),  # one token of many
        ([1, 1, 1, 1], [0, 0, 1, 0], 2),  # many beside one
    ],
)
def test_extreme_rows_neither_raise_nor_become_nan(target, draft, token, of_target, of_draft):
    """T13, 04 DST-6, RND-7"""
    asked, proposal = rows([target, target], of_target), rows([draft], of_draft)
    for seed in range(20):
        verdict = verify(asked, proposal, torch.tensor([token]), noise(1, seed), seeded=False)
        accepted = int(verdict.accepted)
        assert target[int(verdict.continuations[accepted])] > 0
        assert accepted <= target[token]
        if target == draft:
            assert accepted == 1


@pytest.mark.parametrize(("target", "accepted"), [([0, 1, 0, 0], 0), ([1, 1, 0, 0], 1)])
def test_a_draft_that_its_own_row_does_not_hold_stands_iff_the_target_can_draw_it(target, accepted):
    """RND-6, 04 DST-6: q = 0, as rounding may leave it; u * 0 < p unless p is 0 as well."""
    asked, proposal = rows([target, target], "dense"), rows([[0, 0, 1, 1]], "tight")
    verdict = verify(asked, proposal, torch.tensor([0]), noise(1), seeded=False)
    assert int(verdict.accepted) == accepted


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seeded", [False, True])
def test_a_device_is_not_waited_for(device, seeded):
    """RND-4: one read of the host's, which is the round's and not here."""
    where = torch.device(device)
    asked = rows([[1, 2, 3, 4]] * 4, "dense").to(where)
    proposal = rows([[4, 3, 2, 1]] * 3, "dense").to(where)
    drafts = torch.tensor([1, 2, 3], device=where)
    on_host = noise(3)
    assert on_host.target is not None
    assert on_host.accept is not None
    assert on_host.residual is not None
    keys = Keys(on_host.target.to(where), on_host.accept.to(where), on_host.residual.to(where))
    with no_waiting(device):
        verdict = verify(asked, proposal, drafts, keys, seeded=seeded)
    assert verdict.accepted.device.type == device


@pytest.mark.parametrize(
    ("options", "uses"),
    [
        (SamplingOptions(temperature=0), set()),
        (SamplingOptions(seed=5), {Purpose.TARGET}),
        (SamplingOptions(), {Purpose.ACCEPT, Purpose.RESIDUAL}),
    ],
    ids=["greedy", "seeded", "unseeded"],
)
def test_keys_are_of_the_places_where_tokens_will_stand(options, uses):
    """04 SED-2, SED-3, SED-5: the current token is written at 6, so drafts stand at 7, 8 and 9."""
    sampler = one_slot(options)
    keys = Keys.of(sampler, 0, 6, 3)
    for purpose, found, last in (
        (Purpose.TARGET, keys.target, 10),
        (Purpose.ACCEPT, keys.accept, 9),
        (Purpose.RESIDUAL, keys.residual, 10),
    ):
        if purpose not in uses:
            assert found is None
            continue
        assert found is not None
        assert found.tolist() == sampler.keys(0, range(7, last + 1), purpose).tolist()
