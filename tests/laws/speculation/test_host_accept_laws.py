"""A round judged in plain Python comes to what the tensors come to: 03 GEN-5, RND-6, RND-7."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.contract.drafter import Proposal
from forerun.contract.model import Best
from forerun.sampling import host_row
from forerun.sampling.distribution import Distribution
from forerun.sampling.options import SamplingOptions
from forerun.sampling.sampler import Sampler
from forerun.speculation.accept import Keys, verify
from forerun.speculation.host_accept import HostRows, served, verify_on_host

VOCABULARY, USED, BEFORE = 24, 9, 30  # few tokens occur, so that they do so again
CPU = torch.device("cpu")

OPTIONS = st.builds(
    SamplingOptions,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    top_k=st.integers(1, USED - 1),
    top_p=st.sampled_from([0.0, 0.6, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.2]),
    seed=st.sampled_from([-1, 0, 7, 2**40]),
    repeat_last_n=st.sampled_from([-1, 0, 2, 4, 64]),
    repeat_penalty=st.sampled_from([1.0, 1.0, 1.3, 1e30]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.75, 2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5]),
)
SCORES = st.lists(
    st.lists(st.integers(-8, 8), min_size=VOCABULARY, max_size=VOCABULARY), min_size=2, max_size=6
)


def best_of(scores, count):
    """Of equal ones the smaller id first."""
    values, ids = scores.sort(dim=-1, descending=True, stable=True)
    return Best(values[:, :count].contiguous(), ids[:, :count].contiguous())


def proposed(data, depth):
    """Drafts, each with some probability among a few candidates."""
    tokens, probs, ids = [], [], []
    width = data.draw(st.integers(1, 4))
    for _ in range(depth):
        candidates = data.draw(st.permutations(range(USED)))[:width]
        weights = torch.tensor(
            data.draw(st.lists(st.integers(0, 4), min_size=width, max_size=width))
        ).float()
        weights[0] += 1
        tokens.append(candidates[0])
        probs.append(weights / weights.sum())
        ids.append(torch.tensor(candidates))
    rows = Distribution(torch.stack(probs), torch.stack(ids))
    return Proposal(torch.tensor(tokens), rows, tuple(tokens))


@settings(max_examples=300, deadline=None)
@given(scores=SCORES, options=OPTIONS, data=st.data())
def test_a_round_comes_to_what_the_tensors_say(scores, options, data):
    """DST-2, PEN-1: for greedy, seeded and unseeded requests, any filters and penalties."""
    sampler = Sampler(vocab_size=VOCABULARY, context_length=100, device=CPU)
    used = st.lists(st.integers(0, USED - 1), max_size=6)
    sampler.add(0, options, data.draw(used))
    sampler.commit(0, data.draw(used))  # windows that begin anywhere in their ring
    depth = len(scores) - 1
    proposal = proposed(data, depth)
    logits = torch.tensor(scores).float()
    best = best_of(logits, sampler.deciding(0, depth))
    target = sampler.distribution(0, logits, proposal.tokens)
    keys = Keys.of(sampler, 0, BEFORE, depth)
    normalised = sampler.options(0)
    verdict = verify(target, proposal.rows, proposal.tokens, keys, seeded=normalised.seeded)
    rows = HostRows.of(sampler, 0, best, proposal)
    assert served(proposal)
    accepted, token = verify_on_host(
        rows, proposal, lambda place, purpose: sampler.key(0, BEFORE + 1 + place, purpose)
    )
    assert accepted == int(verdict.accepted)
    assert token == int(verdict.continuations[accepted])


def judged(draft, drafts, probs, *, target):
    """(accepted, token): one draft against rows of the tokens in `target`, all equally likely."""
    rows = Distribution(torch.tensor([probs]), torch.tensor([drafts]))
    proposal = Proposal(torch.tensor([draft]), rows, (draft,))
    options = SamplingOptions(temperature=1.0, top_k=len(target), top_p=1.0, repeat_last_n=0)
    rows = HostRows([[0.0] * len(target)] * 2, [target] * 2, [{}] * 2, options)
    return verify_on_host(rows, proposal, lambda *_: 1)


def test_where_the_draft_leaves_nothing_over_the_row_itself_is_drawn_from(monkeypatch):
    """RND-7: rounding may refuse a draft of a row that is the target's own."""
    monkeypatch.setattr(host_row, "uniform", lambda _: 1 - 2**-24)
    accepted, token = judged(1, [1, 2], [0.50000006, 0.5], target=[1, 2])
    assert accepted == 0
    assert token in (1, 2)


def test_a_draft_that_nobody_can_draw_is_refused():
    """RND-6: q = 0 and p = 0; and where the target can draw it, it stands."""
    assert judged(5, [1, 2], [0.5, 0.5], target=[1, 2])[0] == 0
    assert judged(5, [1, 2], [0.5, 0.5], target=[1, 5])[0] == 1


def test_what_it_does_not_serve():
    """Dense and wide rows are the tensors' business."""
    tokens = torch.tensor([1, 2])
    for rows, host in (
        (Distribution(torch.ones(2, 1), tokens[:, None]), None),
        (Distribution(torch.ones(2, 4) / 4), (1, 2)),
        (Distribution(torch.ones(2, 200), torch.arange(200).expand(2, 200)), (1, 2)),
    ):
        assert not served(Proposal(tokens, rows, host))
