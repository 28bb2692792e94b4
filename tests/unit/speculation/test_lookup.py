"""The lookup drafter: what it proposes, from what it was told (spec 03 LKP, T14)."""

from collections.abc import Sequence

import pytest
import torch

from forerun.contract.drafter import DraftRequest, DraftSession, Proposal
from forerun.sampling.distribution import Distribution
from forerun.sampling.noise import Purpose
from forerun.sampling.options import SamplingOptions
from forerun.sampling.sampler import Sampler
from forerun.speculation.accept import Keys, verify
from forerun.speculation.drafters.lookup import LookupDrafter


def opened(
    prompt: Sequence[int], *, media: Sequence[tuple[int, int]] = (), shortest: int | None = None
) -> DraftSession:
    """`shortest` None: as models are served."""
    request = DraftRequest(tuple(prompt), slot=0, media=tuple(media))
    drafter = LookupDrafter() if shortest is None else LookupDrafter(shortest=shortest)
    return drafter.open(request)


def drafts(session: DraftSession, current: int, most: int) -> list[int]:
    proposal = session.propose(current, most)
    return [] if proposal is None else proposal.tokens.tolist()


def test_it_needs_nothing_of_a_model() -> None:
    """LKP-1: no caches, no look-ahead, no conditioning rows, no limit."""
    drafter = LookupDrafter()
    assert not drafter.caches
    assert (drafter.look_ahead, drafter.draft_limit, drafter.needs_rows) == (0, 0, False)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 9, 1, 2, 3], [4, 5, 6, 9]),
        ([8, 1, 2, 3, 4, 9, 7, 1, 2, 3, 5, 9, 8, 1, 2, 3], [4, 9, 7, 1]),  # a longer one before
        ([1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3], [5, 9, 1, 2]),  # as long: the more recent
    ],
)
def test_it_proposes_what_followed_the_longest_suffix(
    prompt: list[int], expected: list[int]
) -> None:
    """LKP-3: the longest suffix that occurred earlier, the most recent occurrence on a tie."""
    assert drafts(opened(prompt), prompt[-1], 4) == expected


def test_a_repeat_of_two_tokens_proposes_nothing() -> None:
    """T14, LKP-3: a match that short burns rounds. No suffix that is long enough: None."""
    prompt = [1, 2, 3, 4, 5, 2, 3]
    assert opened(prompt).propose(3, 4) is None
    assert drafts(opened(prompt, shortest=2), 3, 2) == [4, 5]


def test_a_period_goes_on_into_the_proposal() -> None:
    """LKP-3: in periodic text a proposal reads on in its own tokens."""
    assert drafts(opened([1, 2, 3, 1, 2, 3]), 3, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_it_follows_committed_runs_and_the_current_token() -> None:
    """LKP-2: the prompt, then what is committed, and the current token; never a refused draft."""
    session = opened([1, 2, 3, 4, 5, 6])
    session.committed([1, 2, 3, 4, 5], None, 0)
    session.settle(6)
    assert session.propose(6, 4) is None
    session.committed([6, 7], None, 5)
    session.settle(2)
    assert drafts(session, 2, 3) == []
    session.committed([2, 3], None, 7)
    assert drafts(session, 4, 3) == [5, 6, 7]
    session.committed([4], None, 9)  # all three were refused
    assert drafts(session, 1, 3) == []
    session.committed([1, 2], None, 10)
    assert drafts(session, 3, 2) == [4, 5]
    session.close()


def test_a_restored_prefix_is_part_of_the_text() -> None:
    """LKP-2, DRF-6: what the cache held is never reported, and known from the request."""
    prompt = [1, 2, 3, 4, 9, 8, 1, 2, 3]
    session = opened(prompt)
    session.committed(prompt[5:8], None, 5)
    assert drafts(session, 3, 2) == [4, 9]


@pytest.mark.parametrize("position", [4, 6])
def test_a_gap_or_an_overlap_is_refused(position: int) -> None:
    """DRF-2: runs arrive in the order of their positions without gaps."""
    session = opened([1, 2, 3, 4])
    session.committed([1, 2, 3, 4, 5], None, 0)
    with pytest.raises(AssertionError, match="the last ones ended at 5"):
        session.committed([6], None, position)


def test_a_first_run_beyond_the_prompt_is_refused() -> None:
    """DRF-2."""
    with pytest.raises(AssertionError, match="only 4 are known"):
        opened([1, 2, 3, 4]).committed([6], None, 5)


def test_another_current_token_than_was_reported_is_refused() -> None:
    with pytest.raises(AssertionError, match="5 is current"):
        opened([1, 2, 3, 4]).propose(5, 3)


def test_media_are_neither_matched_nor_proposed() -> None:
    """LKP-2: the same picture twice is no repeat, and nothing is proposed into one."""
    picture = [7, 7, 7, 7]
    twice = [*picture, 5, *picture]
    assert opened([*twice, 5], media=[(0, 4), (5, 9)], shortest=2).propose(5, 3) is None
    told = [*picture, 5, 6, *picture, 5]
    assert opened(told, media=[(0, 4), (6, 10)], shortest=2).propose(5, 3) is None
    before = [1, 2, 3, 4, *picture, 1, 2, 3]
    assert drafts(opened(before, media=[(4, 8)]), 3, 8) == [4]
    directly = [1, 2, 3, *picture, 1, 2, 3]
    assert opened(directly, media=[(3, 7)]).propose(3, 8) is None


def test_nothing_is_proposed_where_nothing_may_be() -> None:
    """DRF-4."""
    assert opened([1, 2, 3, 1, 2, 3]).propose(3, 0) is None


def test_nothing_survives_a_request() -> None:
    """LKP-2: a second request knows nothing of the first one's text."""
    drafter = LookupDrafter()
    first = drafter.open(DraftRequest((1, 2, 3, 4, 1, 2, 3), slot=0))
    assert first.propose(3, 1) is not None
    first.close()
    assert drafter.open(DraftRequest((9, 1, 2, 3), slot=0)).propose(3, 1) is None


def proposed() -> Proposal:
    proposal = opened([1, 2, 3, 4, 5, 1, 2, 3]).propose(3, 2)
    assert proposal is not None
    return proposal


def test_every_draft_was_certain() -> None:
    """LKP-4: q is a point mass, sparse, one id."""
    proposal = proposed()
    assert proposal.rows.ids is not None
    assert proposal.rows.ids.tolist() == [[4], [5]]
    assert proposal.rows.probs.tolist() == [[1.0], [1.0]]


def test_the_host_knows_the_drafts_already() -> None:
    """LKP-5: no device read for a grammar."""
    assert proposed().host_tokens == (4, 5)


TARGET_ROW = torch.tensor([0.0, 0.1, 0.0, 0.2, 0.3, 0.4])
ROUNDS = 3000


def first_verdicts(*, seeded: bool) -> list[tuple[int, int]]:
    """(accepted, continuation) of the draft 4, alone, against the target's row, many times."""
    sampler = Sampler(vocab_size=6, context_length=ROUNDS, device=torch.device("cpu"))
    sampler.add(0, SamplingOptions(temperature=1.0, top_k=0, top_p=1.0, seed=3), [])
    proposal = opened([1, 2, 3, 4, 1, 2, 3]).propose(3, 1)
    assert proposal is not None
    target = Distribution(TARGET_ROW.expand(2, -1))
    verdicts = []
    for at in range(ROUNDS):
        keys = Keys(
            target=sampler.keys(0, [at, at + ROUNDS], Purpose.TARGET),
            accept=sampler.keys(0, [at], Purpose.ACCEPT),
            residual=sampler.keys(0, [at, at + ROUNDS], Purpose.RESIDUAL),
        )
        verdict = verify(target, proposal.rows, proposal.tokens, keys, seeded=seeded)
        verdicts.append((int(verdict.accepted), int(verdict.continuations[0])))
    return verdicts


def test_unseeded_a_draft_stands_with_its_probability_under_the_target() -> None:
    """LKP-4, T14: accepted with p(d); the residual is p without d; together they are p."""
    verdicts = first_verdicts(seeded=False)
    refused = [token for accepted, token in verdicts if not accepted]
    assert 4 not in refused
    counts = [refused.count(token) for token in range(6)]
    counts[4] = ROUNDS - len(refused)
    assert counts[0] == counts[2] == 0
    expected = (TARGET_ROW * ROUNDS).tolist()
    chi = sum(
        (count - wanted) ** 2 / wanted
        for count, wanted in zip(counts, expected, strict=True)
        if wanted
    )
    assert chi < 16.3  # 3 degrees of freedom: one in a thousand is beyond


def test_seeded_a_draft_stands_if_the_target_draws_it() -> None:
    """LKP-4: the target's own draw decides, and follows where the draft falls."""
    verdicts = first_verdicts(seeded=True)
    assert all(accepted == (token == 4) for accepted, token in verdicts)
    assert {accepted for accepted, _ in verdicts} == {0, 1}


@pytest.mark.parametrize(
    ("agreeing", "grade"), [(2, None), (3, 0), (5, 0), (6, 1), (11, 1), (12, 2), (23, 2), (24, 3)]
)
def test_what_agreed_for_longer_is_graded_higher(agreeing: int, grade: int | None) -> None:
    """DRF-8, decision 0019: a grade ends where a suffix is twice as long; the last one does not."""
    repeat = list(range(100, 100 + agreeing))
    prompt = [1, *repeat, 2, 3, *repeat]
    session = opened(prompt)
    assert session.grade(prompt[-1]) == grade
    assert (session.propose(prompt[-1], 2) is None) == (grade is None)
    assert opened([1, *range(100, 200), 2, 3, *range(100, 200)]).grade(199) == 3
