"""A round judged in plain Python comes to what the tensors come to: 03 GEN-5, RND-6, RND-7."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.contract.drafter import Proposal
from forerun.contract.model import Best
from forerun.sampling.distribution import Distribution
from forerun.sampling.options import SamplingOptions
from forerun.sampling.sampler import Sampler
from forerun.speculation.accept import Keys, verify
from forerun.speculation.host_accept import HostRows, served, verify_on_host

VOCABULARY, BEFORE = 9, 30
CPU = torch.device("cpu")

OPTIONS = st.builds(
    SamplingOptions,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    top_k=st.integers(1, VOCABULARY - 1),
    top_p=st.sampled_from([0.0, 0.6, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.2]),
    seed=st.sampled_from([-1, 0, 7, 2**40]),
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
        candidates = data.draw(st.permutations(range(VOCABULARY)))[:width]
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
    """For greedy, seeded and unseeded requests, good and bad drafts, any filters."""
    sampler = Sampler(vocab_size=VOCABULARY, context_length=100, device=CPU)
    sampler.add(0, options, [1])
    depth = len(scores) - 1
    proposal = proposed(data, depth)
    best = best_of(torch.tensor(scores).float(), sampler.deciding(0, depth))
    target = sampler.distribution_best(0, best, proposal.tokens)
    keys = Keys.of(sampler, 0, BEFORE, depth)
    normalised = sampler.options(0)
    verdict = verify(target, proposal.rows, proposal.tokens, keys, seeded=normalised.seeded)
    rows = HostRows.of(best, normalised)
    assert rows is not None
    assert served(proposal)
    accepted, token = verify_on_host(
        rows, proposal, lambda place, purpose: sampler.key(0, BEFORE + 1 + place, purpose)
    )
    assert accepted == int(verdict.accepted)
    assert token == int(verdict.continuations[accepted])


def test_what_it_does_not_serve():
    """Penalties look at the chain of drafts; dense and wide rows are the tensors' business."""
    best = Best(torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.int64))
    assert HostRows.of(best, SamplingOptions(repeat_penalty=1.2)) is None
    tokens = torch.tensor([1, 2])
    for rows, host in (
        (Distribution(torch.ones(2, 1), tokens[:, None]), None),
        (Distribution(torch.ones(2, 4) / 4), (1, 2)),
        (Distribution(torch.ones(2, 200), torch.arange(200).expand(2, 200)), (1, 2)),
    ):
        assert not served(Proposal(tokens, rows, host))
