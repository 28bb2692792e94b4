"""Drafts change nothing in what is drawn: at every place of a round the text follows the target's
own truncated distribution (03 T11, T13, GEN-6).

Eight tokens, temperature 0.7, top-p 0.9, a draft that guesses badly. With penalties each place sees
what was drafted before it, so what the target may draw is tabled by what stands before: the rows of
`Sampler.distribution` for each chain.
"""

import itertools
from dataclasses import dataclass, replace

import pytest
import torch

from forerun.sampling.distribution import Distribution
from forerun.sampling.noise import Purpose, draw_key, seed_key
from forerun.sampling.options import SamplingOptions
from forerun.speculation.accept import Keys, standing, unseeded_at_once, verify
from unit.sampling.making import one_slot

VOCAB, DEPTH, ROUNDS = 8, 2, 20_000
# The 1 - 1e-6 quantile of chi-square with 7 degrees of freedom, the most that 8 tokens have. Seeds
# are fixed, so a pass is a pass for good.
LIMIT = 40.5
PLAIN = SamplingOptions(temperature=0.7, top_p=0.9, top_k=0, repeat_last_n=8)
PENALISED = replace(PLAIN, repeat_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3)
TARGET = torch.tensor(
    [
        [2.0, 1.5, 1.2, 0.9, 0.5, 0.1, -0.5, -1.0],
        [0.3, 1.1, 1.9, -1.0, 0.8, 1.4, 0.2, 0.7],
        [1.0, -0.4, 0.6, 1.2, 1.8, 0.1, 0.9, 0.0],
    ]
)
DRAFT = torch.tensor(
    [[0.1, 1.4, 0.2, 1.6, 1.0, 0.8, 1.2, 0.3], [1.5, 0.2, 1.0, 1.0, 1.7, 0.4, 1.1, 0.6]]
)
PART = torch.tensor([6, 1, 3, 0, 4])  # all that a head of part of the vocabulary can say
CHAINS = [list(itertools.product(range(VOCAB), repeat=depth)) for depth in range(DEPTH + 1)]


@dataclass(frozen=True)
class Pair:
    """Target and draft rows at each place, by the chain before it."""

    target: list[Distribution]
    draft: list[Distribution]


def densified(row):
    return Distribution(row.dense(VOCAB))


def sparse(row):
    """All tokens that can be drawn, and some that cannot, in an order of its own."""
    ids = torch.tensor([[5, 0, 7, 2, 1, 4, 3, 6]])
    return Distribution(row.dense(VOCAB).gather(-1, ids), ids)


def partial(sampler, logits, chain):
    return sampler.distribution(0, logits[:, PART], chain, ids=PART)


def point(row):
    """A lookup's draft: one token, whatever the target thinks of it."""
    return Distribution(torch.ones(1, 1), row.dense(VOCAB).argmax(-1, keepdim=True))


def pair(options, of_target, of_draft):
    sampler = one_slot(options, [1, 2, 1, 5])
    target, draft = [], []
    for place, chains in enumerate(CHAINS):
        rows, proposals = [], []
        for chain in chains:
            seen = torch.tensor(chain, dtype=torch.int64)
            rows.append(of_target(sampler.distribution(0, TARGET[place : place + 1], seen)))
            if place < DEPTH:
                logits = DRAFT[place : place + 1]
                if of_draft is partial:
                    proposals.append(partial(sampler, logits, seen))
                else:
                    proposals.append(of_draft(sampler.distribution(0, logits, seen)))
        target.append(Distribution.cat(rows))
        if place < DEPTH:
            draft.append(Distribution.cat(proposals))
    return Pair(target, draft)


def keys(purpose, rounds=ROUNDS):
    """[rounds, DEPTH + 1]: a text of its own for each round, as one seed's positions make it."""
    seed = seed_key(3)
    positions = range(rounds * (DEPTH + 1))
    drawn = torch.tensor([draw_key(seed, position, purpose) for position in positions])
    return drawn.view(rounds, DEPTH + 1)


@pytest.fixture(scope="module")
def noise():
    purposes = (Purpose.PROPOSAL, Purpose.ACCEPT, Purpose.RESIDUAL, Purpose.TARGET)
    return {purpose: keys(purpose) for purpose in purposes}


def picked(table, chains):
    """The row of each chain, which is told by its number."""
    ids = None if table.ids is None else table.ids[chains]
    return Distribution(table.probs[chains], ids)


def far_from(tokens, rows):
    """Chi-square of one token a row against the rows' own probabilities, added up.

    Rows that differ scatter less than equal ones would, so the bound holds all the more.
    """
    wanted = rows.dense(VOCAB).sum(0, dtype=torch.float64)
    counts = torch.bincount(tokens, minlength=VOCAB)
    assert counts[wanted == 0].sum() == 0, "a token that the target cannot draw"
    possible = wanted > 0
    return float(((counts - wanted)[possible] ** 2 / wanted[possible]).sum())


@pytest.mark.parametrize("options", [PLAIN, PENALISED], ids=["plain", "penalised"])
@pytest.mark.parametrize(
    ("of_target", "of_draft"),
    [(densified, densified), (densified, sparse), (densified, partial), (densified, point)],
    ids=["dense", "sparse draft", "part of the vocabulary", "point mass"],
)
def test_at_each_place_the_text_follows_the_target(of_target, of_draft, options, noise):
    """T11, RND-6, RND-7: 20,000 rounds at every place, each behind a text of the target's own."""
    made = pair(options, of_target, of_draft)
    chains = torch.zeros(ROUNDS, dtype=torch.int64)
    for place in range(DEPTH):
        rows, proposal = picked(made.target[place], chains), picked(made.draft[place], chains)
        drafts = proposal.draw(noise[Purpose.PROPOSAL][:, place])
        residual = noise[Purpose.RESIDUAL][:, place]
        round_keys = Keys(
            accept=noise[Purpose.ACCEPT][:, place], residual=torch.cat([residual, residual[:1]])
        )
        with_bonus = Distribution.cat([rows, rows.rows(slice(1))])
        stands = standing(with_bonus, proposal, drafts, round_keys)
        verdict = unseeded_at_once(with_bonus, proposal, drafts, round_keys)
        tokens = torch.where(stands, drafts, verdict.continuations[:-1])
        assert 0 < stands.sum() < ROUNDS
        assert far_from(tokens, rows) < LIMIT
        chains = chains * VOCAB + tokens
    bonus = picked(made.target[DEPTH], chains)
    assert far_from(bonus.draw(noise[Purpose.RESIDUAL][:, DEPTH]), bonus) < LIMIT


def test_whole_rounds_follow_the_target_up_to_the_bonus(noise):
    """T11: 20,000 rounds through `verify`, with penalties, a sparse target and a dense draft."""
    made = pair(PENALISED, sparse, densified)
    chains = torch.zeros(ROUNDS, dtype=torch.int64)
    drafts = []
    for place in range(DEPTH):
        drafts.append(picked(made.draft[place], chains).draw(noise[Purpose.PROPOSAL][:, place]))
        chains = chains * VOCAB + drafts[-1]
    proposed = torch.stack(drafts, 1)
    emitted = [[] for _ in range(DEPTH + 1)]
    for number, chain in enumerate(proposed.tolist()):
        seen = [0, chain[0], chain[0] * VOCAB + chain[1]]
        target = Distribution.cat([picked(made.target[i], seen[i : i + 1]) for i in range(3)])
        draft = Distribution(
            torch.cat([made.draft[i].probs[seen[i] : seen[i] + 1] for i in (0, 1)])
        )
        round_keys = Keys(
            accept=noise[Purpose.ACCEPT][number, :DEPTH], residual=noise[Purpose.RESIDUAL][number]
        )
        verdict = verify(target, draft, proposed[number], round_keys, seeded=False)
        accepted = int(verdict.accepted)
        text = [*chain[:accepted], int(verdict.continuations[accepted])]
        for place, token in enumerate(text):
            emitted[place].append((seen[place], token))
    for place, seen_tokens in enumerate(emitted):
        chains, tokens = torch.tensor(seen_tokens).T
        assert far_from(tokens, picked(made.target[place], chains)) < LIMIT
    assert len(emitted[0]) == ROUNDS
    assert len(emitted[DEPTH]) > 1000
