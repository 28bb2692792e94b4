"""The draft-model drafter: its forwards, its caches and its draws (spec 03 DRM, T4, T7, T14)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fixtures.toy import EOS, VOCABULARY, NextToken, ToyTarget, chain, endless, tokens_in
from forerun.contract.batch import Batch
from forerun.contract.drafter import DraftRequest, DraftSession, Proposal
from forerun.contract.model import Best, CacheOptions, ModelFacts
from forerun.sampling.distribution import Distribution
from forerun.sampling.noise import Purpose
from forerun.sampling.options import SamplingOptions
from forerun.sampling.sampler import Sampler
from forerun.speculation.accept import Keys, verify
from forerun.speculation.drafters.draft_model import DraftModelDrafter

CONTEXT = 1000
CPU = torch.device("cpu")
GREEDY = SamplingOptions(temperature=0.0)
ALL = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0)  # nothing is filtered


class Rig:
    """A toy draft behind a drafter, and one session."""

    def __init__(
        self,
        draft: ToyTarget | None = None,
        *,
        prompt: Sequence[int] = (1,),
        sampling: SamplingOptions = GREEDY,
        vocabulary: int = VOCABULARY,
        tokens: int | None = None,
    ) -> None:
        self.draft = draft or ToyTarget()
        self.caches = self.draft.new_caches(CacheOptions(CONTEXT))
        self.sampler = Sampler(vocab_size=vocabulary, context_length=CONTEXT, device=CPU)
        self.sampler.add(0, sampling, prompt)
        self.drafter = DraftModelDrafter(
            self.draft, self.caches, self.sampler, chunk=4, tokens=tokens
        )
        self.session: DraftSession = self.drafter.open(DraftRequest(tuple(prompt), slot=0))

    @property
    def forwards(self) -> list[tuple[int, int]]:
        """(position, width) since the last look."""
        forwards, self.draft.forwards = self.draft.forwards, []
        return forwards

    def propose(self, current: int, most: int) -> Proposal:
        proposal = self.session.propose(current, most)
        assert proposal is not None
        return proposal

    def proposed(self, current: int, most: int) -> list[int]:
        return list(self.propose(current, most).host_tokens or ())

    def held(self) -> list[int]:
        """The tokens in the caches; every layer has the same."""
        first, second = (tokens_in(cache) for cache in self.caches if cache is not None)
        assert first == second
        return first


def test_it_follows_the_text_alone() -> None:
    """DRM-1: an ordinary model with caches of its own, no look-ahead, no conditioning, no limit."""
    drafter = Rig().drafter
    assert [cache is None for cache in drafter.caches] == [False, True, False]
    assert (drafter.name, drafter.look_ahead) == ("model", 0)
    assert (drafter.draft_limit, drafter.needs_rows) == (0, False)


def test_a_prompt_is_written_chunk_by_chunk() -> None:
    """DRM-3: in prefill no more waits than a chunk; settle writes the rest and heeds no token."""
    rig = Rig(prompt=range(11))
    rig.session.committed([0, 1, 2], None, 0)
    assert rig.forwards == []
    rig.session.committed([3, 4, 5], None, 3)
    assert rig.forwards == [(0, 4), (4, 2)]
    rig.session.committed([6, 7, 8, 9], None, 6)
    assert rig.forwards == [(6, 4)]
    rig.session.settle(10)
    assert rig.forwards == []
    assert rig.held() == [*range(10)]


def test_single_tokens_wait_for_a_forward_together() -> None:
    """DRM-3, GEN-3: a session that never drafts writes many tokens at once, and keeps level."""
    rig = Rig()
    for position in range(255):
        rig.session.committed([position % VOCABULARY], None, position)
    assert rig.forwards == []
    rig.session.committed([255 % VOCABULARY], None, 255)
    assert rig.forwards == [(start, 4) for start in range(0, 256, 4)]
    rig.session.committed([3], None, 256)
    rig.session.close()
    assert rig.forwards == [(256, 1)]
    assert rig.held() == [position % VOCABULARY for position in range(256)] + [3]


def test_a_chain_forwards_every_token_once_and_the_last_draft_never() -> None:
    """DRM-4: what waits and the current token in one forward, then one a further draft."""
    rig = Rig(ToyTarget(endless), prompt=(1, 2, 3))
    rig.session.committed([1, 2], None, 0)
    drafts = rig.proposed(3, 3)
    assert rig.forwards == [(0, 3), (3, 1), (4, 1)]
    assert drafts == follow(endless, [1, 2, 3], 3)
    assert rig.held() == [1, 2, 3, *drafts[:2]]


def follow(next_token: NextToken, tokens: Sequence[int], count: int) -> list[int]:
    """The `count` tokens that come next."""
    text = list(tokens)
    for _ in range(count):
        text.append(next_token(text))
    return text[len(tokens) :]


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_refused_drafts_leave_the_caches_as_the_round_ends(kept: int) -> None:
    """DRM-5: kept drafts are there already and are not forwarded again; the others are gone."""
    rig = Rig(ToyTarget(endless))
    drafts = rig.proposed(1, 3)
    rig.session.committed([1, *drafts[:kept]], None, 0)
    assert rig.held() == [1, *drafts[:kept]]
    rig.draft.forwards.clear()
    again = rig.proposed(9, 2)
    assert rig.forwards == [(1 + kept, 1), (2 + kept, 1)]
    assert again == follow(endless, [1, *drafts[:kept], 9], 2)


def test_with_all_drafts_kept_the_last_one_waits() -> None:
    """DRM-5."""
    rig = Rig(ToyTarget(endless))
    drafts = rig.proposed(1, 3)
    rig.session.committed([1, *drafts], None, 0)
    assert rig.held() == [1, *drafts[:2]]
    rig.draft.forwards.clear()
    rig.proposed(9, 1)
    assert rig.forwards == [(3, 2)]


def test_an_accepted_stop_token_is_not_in_the_caches() -> None:
    """T4, T14: drafts 2 3 EOS 0 are kept up to the token before EOS, which is not committed."""
    rig = Rig()
    assert rig.proposed(1, 6) == [2, 3, 4, EOS, 0, 0]
    rig.session.committed([1, 2, 3, 4], None, 0)
    rig.session.settle(EOS)
    rig.session.close()
    assert rig.held() == [1, 2, 3, 4]


@pytest.mark.parametrize("committed", [(), (7, 8)])
def test_a_round_that_never_reports_leaves_nothing(committed: tuple[int, ...]) -> None:
    """T7, T14, DRM-5: close leaves no speculative entry, and no schedule either."""
    rig = Rig(ToyTarget(endless), prompt=(*committed, 1))
    if committed:
        rig.session.committed(committed, None, 0)
    rig.propose(1, 4)
    rig.session.close()
    assert rig.held() == [*committed]
    for cache in rig.caches:
        if cache is not None:
            cache.prepare_snapshots([len(committed)])  # asserts that the last one was taken


@pytest.mark.parametrize("fails_at", [0, 4])
def test_a_chain_that_fails_is_undone(fails_at: int) -> None:
    """RND-10: an error in a draft's forward reaches the caller; closing adds none."""
    rig = Rig(ToyTarget(endless), prompt=(7, 8, 1))
    rig.session.committed([7, 8], None, 0)
    rig.draft.fails_at = fails_at
    with pytest.raises(RuntimeError, match="the toy broke"):
        rig.session.propose(1, 4)
    rig.session.close()
    layers = [tokens_in(cache) for cache in rig.caches if cache is not None]
    assert layers == [[7, 8], [7, 8] if fails_at else []]


@pytest.mark.parametrize("committed", [(), (7, 8)])
def test_a_proposal_may_be_asked_for_again(committed: tuple[int, ...]) -> None:
    """DRM-4: the chain before it is taken back first."""
    rig = Rig(ToyTarget(endless), prompt=(*committed, 1))
    rig.session.committed(committed, None, 0)
    first = rig.proposed(1, 4)
    assert rig.proposed(1, 4) == first
    rig.session.committed([1, *first], None, len(committed))
    rig.session.close()
    assert rig.held() == [*committed, 1, *first]


def test_what_waits_is_written_in_chunks_before_a_chain_too() -> None:
    """DRM-3: single tokens that wait may be more than a forward takes."""
    rig = Rig(ToyTarget(endless))
    for position in range(6):
        rig.session.committed([position], None, position)
    rig.propose(9, 2)
    assert rig.forwards == [(0, 4), (4, 2), (6, 1), (7, 1)]


def test_caches_that_somebody_else_moved_are_noticed() -> None:
    """DRM-1: between rounds they are where the session left them."""
    rig = Rig(ToyTarget(endless))
    rig.session.committed([1, 2], None, 0)
    rig.session.settle(3)
    cache = rig.caches[0]
    assert cache is not None
    assert cache.restore(None, 1)
    with pytest.raises(AssertionError, match="a draft's caches at"):
        rig.session.propose(3, 1)


def test_a_restored_prefix_is_written_already() -> None:
    """DRF-6: a session begins where the restored caches end."""
    rig = Rig(prompt=(1, 2, 3))
    rig.session.committed([1, 2], None, 0)
    rig.session.close()
    rig.draft.forwards.clear()
    session = rig.drafter.open(DraftRequest((1, 2, 7, 8), slot=0))
    session.committed([7], None, 2)
    session.settle(8)
    assert rig.forwards == [(2, 1)]


@pytest.mark.parametrize("position", [1, 3])
def test_a_gap_or_an_overlap_is_refused(position: int) -> None:
    """DRF-2."""
    rig = Rig()
    rig.session.committed([1, 2], None, 0)
    with pytest.raises(AssertionError, match="the last ones ended at 2"):
        rig.session.committed([3], None, position)


def test_a_report_of_what_was_not_drafted_is_refused() -> None:
    """DRM-5: of a round, whose drafts stand in the caches already."""
    rig = Rig(ToyTarget(endless))
    drafts = rig.proposed(1, 3)
    with pytest.raises(AssertionError, match="drafted"):
        rig.session.committed([1, drafts[0] + 1], None, 0)


def test_nothing_is_proposed_beyond_the_drafts_context() -> None:
    """DRM-2: a shorter context than the target's only means None; the caches go on following."""

    class Short(ToyTarget):
        @property
        def facts(self) -> ModelFacts:
            return replace(super().facts, max_context=6)

    rig = Rig(Short(endless))
    rig.session.committed([1, 2, 3], None, 0)
    drafts = rig.proposed(4, 8)
    assert len(drafts) == 3
    rig.session.committed([4, *drafts[:2]], None, 3)
    assert rig.session.propose(7, 8) is None
    rig.session.committed([7], None, 6)
    rig.session.close()
    assert rig.held() == [1, 2, 3, 4, *drafts[:2], 7]


def test_nothing_is_proposed_where_nothing_may_be() -> None:
    """DRF-4."""
    assert Rig().session.propose(1, 0) is None


def rows_of(rig: Rig, tokens: Sequence[int], drafts: Sequence[int]) -> Distribution:
    """What each draft should have been drawn from, each row seeing the drafts before it."""
    text = [*tokens, *drafts[:-1]]
    fresh = rig.draft.new_caches(CacheOptions(CONTEXT))
    batch = Batch.of(text, 0, CPU)
    logits = rig.draft.forward(batch, fresh).hidden[0, len(tokens) - 1 :]
    chained = torch.tensor(drafts[:-1], dtype=torch.int64)
    return rig.sampler.distribution(0, logits, chained)


PENALISED = SamplingOptions(
    temperature=0.8, top_k=5, top_p=0.95, presence_penalty=2.0, repeat_penalty=1.3, seed=3
)


@pytest.mark.parametrize("sampling", [GREEDY, ALL, PENALISED], ids=["greedy", "all", "penalised"])
def test_each_draft_comes_from_its_own_row(sampling: SamplingOptions) -> None:
    """DRM-4, MTP-8: the slot's options, and the drafts before it as history."""
    rig = Rig(ToyTarget(lambda _: 7, peak=2.0), prompt=(4, 5, 1), sampling=sampling)
    rig.session.committed([4, 5], None, 0)
    proposal = rig.propose(1, 5)
    expected = rows_of(rig, [4, 5, 1], proposal.tokens.tolist())
    rows = Distribution(proposal.rows.probs, proposal.rows.ids)
    assert torch.equal(rows.dense(VOCABULARY), expected.dense(VOCABULARY))
    assert bool((rows.prob(proposal.tokens) > 0).all())


def test_penalties_see_the_drafts() -> None:
    """MTP-8: a draft that was proposed is penalised in the rest of the chain."""
    penalised = SamplingOptions(temperature=0.0, presence_penalty=2.0)
    rig = Rig(ToyTarget(lambda _: 7, peak=1.0), sampling=penalised)
    drafts = rig.proposed(1, 4)
    assert drafts[0] == 7
    assert len(set(drafts)) == 4


@pytest.mark.parametrize("seed", [-1, 11], ids=["unseeded", "seeded"])
def test_drafts_are_drawn_with_the_noise_of_their_positions(seed: int) -> None:
    """04 SED-2, 04 SED-3: a seeded slot's drafts with the target's noise, else with their own."""
    sampling = SamplingOptions(temperature=1.5, top_k=0, top_p=1.0, seed=seed)
    rig = Rig(ToyTarget(endless, peak=1.0), prompt=(4, 5, 1), sampling=sampling)
    rig.session.committed([4, 5], None, 0)
    proposal = rig.propose(1, 6)
    purpose = Purpose.PROPOSAL if seed < 0 else Purpose.TARGET
    keys = rig.sampler.keys(0, range(3, 9), purpose)
    expected = Distribution(proposal.rows.probs, proposal.rows.ids).draw(keys)
    assert torch.equal(proposal.tokens, expected)


def test_a_draft_that_is_the_target_is_always_accepted_with_a_seed() -> None:
    """RND-6: equal rows and equal noise draw equal tokens, at a high temperature too."""
    sampling = SamplingOptions(temperature=1.5, top_k=0, top_p=1.0, seed=2)
    rig = Rig(ToyTarget(endless, peak=1.0), sampling=sampling)
    drafts = rig.proposed(1, 8)
    plain = ToyTarget(endless, peak=1.0)
    text, caches = [1], plain.new_caches(CacheOptions(CONTEXT))
    for position in range(8):
        logits = plain.forward(Batch.of(text[-1:], position, CPU), caches).hidden[0, -1:]
        text.append(int(rig.sampler.sample([0], logits, [position + 1]).tokens))
    assert drafts == text[1:]


class Ranked(ToyTarget):
    """Tells its largest logits, and counts how many it was asked for."""

    def __init__(self, next_token: NextToken = chain, *, peak: float = 50.0) -> None:
        super().__init__(next_token, peak=peak)
        self.asked: list[int] = []

    def best(self, hidden: Tensor, count: int) -> Best:
        self.asked.append(count)
        values, ids = hidden.sort(stable=True, dim=-1, descending=True)
        return Best(values[:, :count], ids[:, :count])

    def unembed(self, hidden: Tensor) -> Tensor:
        self.asked.append(-1)
        return super().unembed(hidden)


def test_a_greedy_draft_asks_for_one_logit() -> None:
    """DRM-1: a draft that can tell its best logits is not asked for all of them."""
    draft = Ranked(endless)
    assert Rig(draft).proposed(1, 4) == follow(endless, [1], 4)
    assert draft.asked == [1, 1, 1, 1]


def test_few_logits_give_the_rows_of_all() -> None:
    """DRM-1: bit for bit, with top-k and penalties."""
    sampling = SamplingOptions(temperature=0.8, top_k=3, presence_penalty=0.5, seed=4)
    ranked, plain = (
        Rig(draft, sampling=sampling).propose(1, 4)
        for draft in (Ranked(endless, peak=1.0), ToyTarget(endless, peak=1.0))
    )
    assert torch.equal(ranked.tokens, plain.tokens)
    dense = [Distribution(each.rows.probs, each.rows.ids).dense(16) for each in (ranked, plain)]
    assert torch.equal(*dense)


PADDING = 10  # where the real tokens end, in the tests of it


@pytest.mark.parametrize("draft", [ToyTarget, Ranked])
@pytest.mark.parametrize("vocabulary", [PADDING, 12, VOCABULARY, 20])
@pytest.mark.parametrize("sampling", [GREEDY, ALL], ids=["greedy", "all"])
def test_padding_is_never_proposed(
    draft: Callable[..., ToyTarget], vocabulary: int, sampling: SamplingOptions
) -> None:
    """DRM-2: output rows may be padded on either side; q is 0 there, however large the logits."""
    padded = draft(lambda _: PADDING + 1, peak=30.0)
    rig = Rig(padded, sampling=sampling, vocabulary=vocabulary, tokens=PADDING)
    proposal = rig.propose(1, 3)
    assert bool((proposal.tokens < PADDING).all())
    rows = Distribution(proposal.rows.probs, proposal.rows.ids).dense(vocabulary)
    assert rows.shape[-1] == vocabulary
    assert not rows[:, PADDING:].any()
    torch.testing.assert_close(rows.sum(-1), torch.ones(3))


def test_more_logits_than_there_are_tokens_are_all() -> None:
    """DRM-2: a top-k that only the target's wider output can fill."""
    sampling = SamplingOptions(temperature=1.0, top_k=18)
    rig = Rig(Ranked(endless, peak=1.0), sampling=sampling, vocabulary=20, tokens=VOCABULARY)
    proposal = rig.propose(1, 3)
    rows = Distribution(proposal.rows.probs, proposal.rows.ids).dense(20)
    assert not rows[:, VOCABULARY:].any()


def test_unpadded_outputs_may_be_narrower_than_the_targets() -> None:
    """DRM-2: only the target's rows are padded."""
    rig = Rig(ToyTarget(endless), vocabulary=20, tokens=VOCABULARY)
    assert rig.proposed(1, 3) == follow(endless, [1], 3)


def test_sampled_text_has_the_targets_distribution() -> None:
    """T14, T11: against a target that disagrees, whatever the draft proposes."""
    target = torch.softmax(torch.linspace(-1, 1, VOCABULARY), 0)
    tokens = [token for _ in range(3) for token in sampled(target)]
    counts = torch.bincount(torch.tensor(tokens), minlength=VOCABULARY)
    expected = len(tokens) * target
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert chi < 54  # 15 degrees of freedom: one in 400,000 is beyond, of seeds that nobody chose


def sampled(target: Tensor) -> list[int]:
    """Tokens at all positions of one slot, each from a draft and a target with the same row."""
    rig, tokens = Rig(ToyTarget(lambda _: 7, peak=3.0), sampling=ALL), list[int]()
    rows = Distribution(target.expand(2, -1))
    for position in range(0, CONTEXT - 8, 4):  # so far apart, no two draws share their noise
        proposal = rig.propose(1, 4)
        drawn = Distribution(proposal.rows.probs, proposal.rows.ids)
        for place, draft in enumerate(proposal.tokens.split(1)):
            keys = Keys.of(rig.sampler, 0, position + place, 1)
            verdict = verify(rows, drawn.rows(slice(place, place + 1)), draft, keys, seeded=False)
            tokens.append(int(draft if verdict.accepted else verdict.continuations[0]))
        rig.session.committed([1, *proposal.tokens.tolist()[:3]], None, position)
    return tokens
