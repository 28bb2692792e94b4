"""Speculative decoding step by step over the toy target 1 -> 2 -> 3 -> 4 -> EOS: 03 T1 to T7, T15,
T16, and the rules of a round, RND."""

import dataclasses
import logging

import pytest
import torch

from fixtures.hybrid import hybrid_model
from fixtures.noted_drafter import NotedDrafter
from fixtures.scripted_drafter import (
    FixedDepth,
    ScriptedDrafter,
    drafting_with,
    oracle,
    point_masses,
)
from fixtures.toy import (
    EOS,
    VOCABULARY,
    ListSink,
    ToyTarget,
    ask,
    chain,
    continued,
    endless,
    loaded_toy,
    tokens_in,
)
from forerun.base.errors import RequestError
from forerun.contract.batch import Batch
from forerun.contract.drafter import Proposal
from forerun.contract.model import CacheOptions, DraftFacts, Forward
from forerun.sampling.distribution import Distribution
from forerun.sampling.options import SamplingOptions
from forerun.sampling.refusals import NoAllowedTokenError
from forerun.sampling.sampler import Sampler
from forerun.speculation.bound import BoundDrafters
from forerun.speculation.drafters.chain import ChainDrafter
from forerun.speculation.round import Outcome, Rounds, settled

AUTO = SamplingOptions(temperature=0.0)
LOOK_AHEAD = pytest.mark.parametrize("look_ahead", [0, 1])
PROMPT = [1, 2, 3, 4, 6, 7]


class ToyHead:
    """Without caches; says what the target says. `calls` lists (position, token)."""

    column_ids = None
    facts = DraftFacts(
        columns=VOCABULARY,
        hidden_size=VOCABULARY,
        taps_size=VOCABULARY,
        step_size=VOCABULARY,
        max_context=1000,
        weight_bytes=0,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )

    def __init__(self):
        self.calls = []

    def new_caches(self, options):
        del options
        return []

    def condition(self, taps):
        return taps

    def forward(self, batch, target_caches, draft_caches):
        del target_caches, draft_caches
        (token,) = batch.input_ids[0].tolist()
        self.calls.append((batch.starts[0], token))
        hidden = 50.0 * torch.nn.functional.one_hot(torch.tensor([[chain([token])]]), VOCABULARY)
        return Forward(hidden.float(), hidden.float())

    def unembed(self, hidden):
        return hidden


def chained(look_ahead):
    """A toy with a cacheless chain drafter, always asked for four drafts."""
    target, head = ToyTarget(), ToyHead()
    loaded = loaded_toy(target, look_ahead=look_ahead)
    drafter = ChainDrafter(head, loaded.caches, [], loaded.sampler)
    bound = BoundDrafters(primary=drafter, controllers={"model": [FixedDepth(4)]})
    return dataclasses.replace(loaded, drafters=bound), target, head


def unprimed(look_ahead):
    """Asked after a prefix-cache hit of all but the prompt's last token: no row is reported."""
    loaded, target, head = chained(look_ahead)
    ask(loaded, [0, 1], 0)
    target.forwards.clear()
    return loaded, target, head


def test_an_unprimed_drafter_is_parked_and_resumed_with_the_token_in_flight():
    """T1, RND-3 (look-ahead 1): no forward is wasted, and none is made for the token handed out."""
    loaded, target, head = unprimed(look_ahead=1)
    sink = ask(loaded, [0, 1], sampling=AUTO)
    assert target.forwards == [(1, 1), (2, 1), (3, 5)]
    assert head.calls == [(2, 3), (2, 4), (2, EOS), (2, 0)]
    assert (sink.tokens, sink.reason) == ([2, 3, 4], "stop")
    drafting = sink.figures.drafting
    assert (drafting.rounds, drafting.drafted) == (3, 4)  # plain, resumed, drafted (STA-1)


def test_an_unprimed_drafter_is_resumed_at_once_where_nothing_is_in_flight():
    """T1b, RND-3 (look-ahead 0)."""
    loaded, target, head = unprimed(look_ahead=0)
    sink = ask(loaded, [0, 1], sampling=AUTO)
    assert target.forwards == [(1, 1), (2, 5)]
    assert head.calls == [(1, 2), (1, 3), (1, 4), (1, EOS)]
    assert (sink.tokens, sink.reason) == ([2, 3, 4], "stop")
    assert sink.figures.drafting.rounds == 2


@LOOK_AHEAD
def test_a_primed_drafter_needs_one_forward(look_ahead):
    """T2, GEN-2: the prompt's last token is the first current token."""
    loaded, target, head = chained(look_ahead)
    sink = ask(loaded, [0, 1], sampling=AUTO)
    assert [forward for forward in target.forwards if forward[0]] == [(1, 5)]
    assert head.calls == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert (sink.tokens, sink.reason) == ([2, 3, 4], "stop")


class Outcomes(FixedDepth):
    def __init__(self, depth):
        super().__init__(depth)
        self.seen = []

    def outcome(self, accepted, observed):
        self.seen.append((accepted, observed))


@pytest.mark.parametrize(
    ("drafts", "outcome"),
    [
        ((2, 3, 4, EOS, 0), (4, 4)),
        ((2, 3, 4, EOS), (4, 4)),
        ((2, 3, 9, 0), (2, 4)),
        ((9, 3, 4, EOS), (0, 4)),
        ((2, 3, 4), (3, 3)),
    ],
)
def test_a_round_observes_what_it_judged_and_keeps_what_it_accepted(drafts, outcome):
    """T4, RND-8, RND-14, DEP-4: one forward, whatever it comes to; an accepted stop token ends the
    round, unobserved behind it, and its own state stays out of the caches, which rest one token
    before what is recorded."""
    target, owner = ToyTarget(), NotedDrafter()
    scripted = ScriptedDrafter(lambda known, _: drafts if len(known) == 2 else ())
    controller = Outcomes(5)
    bound = BoundDrafters(owner, scripted, {"model": [FixedDepth(0)], "lookup": [controller]})
    loaded = dataclasses.replace(loaded_toy(target), drafters=bound)
    sink = ask(loaded, [0, 1], sampling=dataclasses.replace(AUTO, draft="lookup"))
    assert controller.seen == [outcome]
    assert target.forwards[1] == (1, 1 + len(drafts))
    assert target.forwards[2:3] in ([], [(1 + outcome[0] + 1, 1)])
    assert (sink.tokens, sink.reason) == ([2, 3, 4], "stop")
    assert tokens_in(loaded.caches[0]) == tokens_in(loaded.caches[2]) == [0, 1, 2, 3, 4]
    assert [token for _, run, _ in owner.runs for token in run] == [0, 1, 2, 3, 4]
    assert owner.settled == [1, EOS]


@LOOK_AHEAD
@pytest.mark.parametrize("draft", ["off", "lookup", "model"])
def test_the_drafter_that_owns_caches_is_level_whoever_drafts(look_ahead, draft):
    """T6, T15, GEN-3, DRF-1, DRF-3, RND-2, RND-11, RND-15: told of each token once, in order, and
    settled with the current token, or with the one in flight."""
    owner, target = NotedDrafter(), ToyTarget(endless)
    owner.plain = False
    loaded = loaded_toy(target, look_ahead=look_ahead, chunk=2, drafter=owner)
    sequence = continued(PROMPT, 40)
    loaded = drafting_with(loaded, ScriptedDrafter(oracle(sequence)), depth=3)
    ask(loaded, PROMPT, 9, sampling=dataclasses.replace(AUTO, draft=draft))
    held = tokens_in(loaded.caches[0])
    told = [token for _, run, _ in owner.runs for token in run]
    assert told == held == sequence[: len(held)]
    for position, tokens, rows in owner.runs:
        assert rows == [endless(sequence[: position + i + 1]) for i in range(len(tokens))]
    assert owner.settled[-1] == sequence[len(held)]
    assert owner.closed == 1


@LOOK_AHEAD
@pytest.mark.parametrize("stop_at", [1, 2])
def test_a_parked_request_that_stops_is_settled_with_the_token_in_flight(look_ahead, stop_at):
    """RND-15, RND-16: drawn and never handed out, it is what follows all that the caches hold."""
    owner, target = NotedDrafter(), ToyTarget(endless)
    owner.plain = False
    loaded = loaded_toy(target, look_ahead=look_ahead, drafter=owner)
    ask(loaded, PROMPT, 30, sampling=AUTO, sink=ListSink(stop_at=stop_at))
    held = tokens_in(loaded.caches[0])
    assert len(held) == len(PROMPT) - 1 + stop_at + look_ahead
    assert owner.settled == [PROMPT[-1], continued(PROMPT, len(held) + 1)[-1]]


@pytest.mark.parametrize(
    ("accepted", "outcome"),
    [
        (4, Outcome((2, 3, EOS), kept=2, accepted=3, observed=3, current=EOS)),
        (3, Outcome((2, 3, EOS), kept=2, accepted=3, observed=3, current=EOS)),
        (2, Outcome((2, 3, 7), kept=2, accepted=2, observed=4, current=7)),
        (0, Outcome((7,), kept=0, accepted=0, observed=4, current=7)),
    ],
)
def test_an_accepted_stop_token_is_the_last_of_its_round(accepted, outcome):
    """RND-8: no continuation behind it, and its own state is not kept; RND-7 without one."""
    assert settled((2, 3, EOS, 4), accepted, 7, frozenset({EOS})) == outcome


def right_but_for_the_last(sequence):
    return lambda known, most: [*sequence[len(known) : len(known) + most - 1], 0]


@LOOK_AHEAD
@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("cancel_at", range(12))
def test_a_request_cancelled_in_an_accepted_run_has_recorded_all_of_it(
    look_ahead, depth, cancel_at
):
    """T7, DEC-2, RND-2, RND-10, RND-16: the next turn starts from what the caches hold; parked
    (depth 0), what is in flight is drained."""
    loaded = loaded_toy(ToyTarget(endless), look_ahead=look_ahead)
    sequence = continued(PROMPT, 60)
    drafter = ScriptedDrafter(oracle(sequence))
    loaded = drafting_with(loaded, drafter, depth=depth)
    sink = ask(loaded, PROMPT, 30, sampling=AUTO, sink=ListSink(cancel_at=cancel_at))
    held = tokens_in(loaded.caches[0])
    assert held == sequence[: len(held)]
    assert drafter.closed == (0 if sink.error and sink.calls == ["fail"] else 1)
    again = ask(loaded, [*held, 7, 9], 4, sampling=AUTO)
    assert again.figures.cached_tokens == len(held)


def test_two_drafters_in_turn_keep_their_own_depth():
    """T15, DEP-7, DEP-11: the next request goes on where its drafter's last one ended."""
    loaded = loaded_toy(ToyTarget(endless))
    sequence = continued(PROMPT, 200)
    right = ScriptedDrafter(oracle(sequence), name="model")
    wrong = ScriptedDrafter(lambda _, most: [0] * most)
    loaded = dataclasses.replace(loaded, drafters=BoundDrafters.of(right, wrong))
    for _ in range(3):
        for drafter, other in ((right, wrong), (wrong, right)):
            depth = loaded.drafters.controllers[drafter.name][0].scheduled
            drafter.asked, other.asked = [], []
            ask(loaded, PROMPT, 90, sampling=dataclasses.replace(AUTO, draft=drafter.name))
            assert drafter.asked[:1] == [] or not depth or drafter.asked[0][1] == depth
            assert not other.asked
    deep, shallow = (loaded.drafters.controllers[name][0].report() for name in ("model", "lookup"))
    assert set(deep.rates) == {1.0}
    assert set(shallow.rates) <= {0.0}
    assert {0, 1} <= set(deep.costs)
    assert {0, 1} <= set(shallow.costs)


class Noted(FixedDepth):
    """Counts the rounds that it chose a depth after."""

    chosen = 0

    def next(self):
        self.chosen += 1
        return super().next()


def test_a_drafter_that_knows_nothing_learns_nothing_where_it_can_be_asked():
    """LKP-5, DEP-6: with nothing in flight it is asked at every token, whatever its depth is."""
    drafter, controller = ScriptedDrafter(oracle(continued(PROMPT, 60))), Noted(0)
    drafter.grade = None
    bound = BoundDrafters(lookup=drafter, controllers={"lookup": [controller]})
    loaded = dataclasses.replace(loaded_toy(ToyTarget(endless)), drafters=bound)
    ask(loaded, PROMPT, 20, sampling=AUTO)
    assert controller.chosen == 1  # the last round, whose token nobody may draft behind
    drafter.grade = 0
    ask(loaded, PROMPT, 20, sampling=AUTO)
    assert controller.chosen == 1 + 20


def test_drafters_take_turns_in_one_answer_and_are_named():
    """DRF-8, STA-2, decision 0019: by the model's own contests, which outlive a request as what
    is known of the parts of rounds does."""
    sequence = continued(PROMPT, 100)
    first = ScriptedDrafter(oracle(sequence), name="model")
    second = ScriptedDrafter(oracle(sequence))
    loaded = loaded_toy(ToyTarget(endless))
    loaded = dataclasses.replace(loaded, drafters=BoundDrafters.of(first))
    loaded = drafting_with(loaded, second, depth=2)
    sink = ask(loaded, PROMPT, 30, sampling=AUTO)
    assert sink.tokens == sequence[len(PROMPT) :][:30]
    assert sink.figures.drafting.drafter == "model+lookup"
    assert len(first.asked) == len(second.asked) == 5
    assert list(loaded.drafters.part_costs.forwards.measured()) == [2]
    again = ask(loaded, PROMPT, 3, sampling=AUTO)
    assert again.figures.drafting.drafter == "lookup"  # whose turn it is


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_log_probabilities_are_those_of_plain_decoding(depth):
    """T16, RND-17, 04 LGP-6: an entry a token, from its own verification row."""
    options = SamplingOptions(temperature=0.0, logprobs=True, top_logprobs=3)
    plain = ask(
        loaded_toy(ToyTarget(endless, peak=3.0)),
        PROMPT,
        12,
        sampling=dataclasses.replace(options, draft="off"),
    )
    sequence = [*PROMPT, *plain.tokens, *PROMPT]
    drafter = ScriptedDrafter(right_but_for_the_last(sequence))
    loaded = drafting_with(loaded_toy(ToyTarget(endless, peak=3.0)), drafter, depth=depth)
    drafted = ask(loaded, PROMPT, 12, sampling=options)
    assert drafted.figures.drafted_tokens > 0
    assert drafted.logprobs == plain.logprobs


@LOOK_AHEAD
@pytest.mark.parametrize("part", ["propose", "rows", "forward", "restore", "commit"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_round_that_fails_fails_its_request_alone(look_ahead, part, count):
    """RND-10, 05 REQ-3: schedules are drained, and the next request answers as a fresh engine."""
    target = ToyTarget(endless)
    loaded = loaded_toy(target, look_ahead=look_ahead)
    sequence = continued(PROMPT, 60)
    drafter = ScriptedDrafter(right_but_for_the_last(sequence))
    loaded = drafting_with(loaded, drafter, depth=3)
    owner, name = {
        "propose": (drafter, "script"),
        "rows": (drafter, "rows"),
        "forward": (target, "forward"),
        "restore": (loaded.caches[0], "restore"),
        "commit": (loaded.sampler, "commit"),
    }[part]
    real, left = getattr(owner, name), count

    def failing(*arguments):
        nonlocal left
        left -= len(drafter.asked) > 0 or part == "propose"  # not before the first round
        if not left:
            raise RuntimeError("the round broke")
        return real(*arguments)

    setattr(owner, name, failing)
    sink = ListSink()
    with pytest.raises(RuntimeError, match="the round broke"):
        ask(loaded, PROMPT, 20, sampling=AUTO, sink=sink)
    setattr(owner, name, real)
    assert sink.error.status == 500
    assert len(sink.tokens) == 3 * (count - 1)
    assert sink.tokens == sequence[len(PROMPT) :][: len(sink.tokens)]
    assert drafter.closed == 1
    assert ask(loaded, PROMPT, 20, sampling=AUTO).tokens == sequence[len(PROMPT) :][:20]


class DryRounds(Sampler):
    """Allows no token at one position, as a grammar that is at its end does."""

    dry_at = 0

    def sample(self, slots, logits, positions, allowed=None):
        if positions == [self.dry_at]:
            raise NoAllowedTokenError(slots[0])
        return super().sample(slots, logits, positions, allowed)

    def distribution(self, slot, logits, drafts=None, *, ids=None, allowed=None):
        rows = super().distribution(slot, logits, drafts, ids=ids, allowed=allowed)
        probs = rows.probs.clone()
        place = self.dry_at - self.first
        if 0 <= place < len(probs):
            probs[place] = 0
        self.first += len(probs)
        return Distribution(probs, rows.ids)

    first = 0


@LOOK_AHEAD
@pytest.mark.parametrize("dry_at", range(6, 12))
def test_where_no_token_is_allowed_all_before_it_is_handed_out(look_ahead, dry_at):
    """04 ORD-9, decoder laws 1 and 2: the same tokens as plain decoding hands out, then the error;
    the last token has no successor that could settle it."""
    target, owner = ToyTarget(endless), NotedDrafter()
    loaded = loaded_toy(target, look_ahead=look_ahead, drafter=owner)
    sampler = DryRounds(vocab_size=VOCABULARY, context_length=200, device=target.facts.device)
    sampler.dry_at, sampler.first = dry_at, len(PROMPT)
    sequence = continued(PROMPT, 40)
    drafter = ScriptedDrafter(lambda known, most: oracle(sequence)(known, 3) if most > 3 else ())
    loaded = dataclasses.replace(drafting_with(loaded, drafter, depth=4), sampler=sampler)
    sink = ask(loaded, PROMPT, 20, sampling=dataclasses.replace(AUTO, draft="lookup"))
    assert isinstance(sink.error, RequestError)
    assert sink.tokens == sequence[len(PROMPT) : dry_at]
    assert [token for _, run, _ in owner.runs for token in run] == sequence[:dry_at]
    assert tokens_in(loaded.caches[0])[: dry_at - 1] == sequence[: dry_at - 1]
    assert owner.settled == [PROMPT[-1]]


@pytest.mark.parametrize("breaks_at", [0, 1, 2, 3])
@torch.inference_mode()
def test_a_forward_that_breaks_off_leaves_no_schedule_and_no_draft(breaks_at):
    """RND-10: recurrent layers too, of which some have written the round and others have not."""
    model = hybrid_model()
    caches = model.new_caches(CacheOptions(100, slack=16))
    tokens = list(range(9))
    model.forward(Batch.of(tokens, 0, model.facts.device), caches)
    sampler = Sampler(vocab_size=64, context_length=100, device=model.facts.device)
    sampler.add(0, AUTO, tokens)
    rounds = Rounds(model, caches, sampler, slot=0, eos=frozenset())
    drafts = torch.tensor([5, 6, 7])
    proposal = Proposal(drafts, point_masses(drafts))
    layers = model._layers

    def breaking(*_):
        raise RuntimeError("a layer broke")

    model._layers = [*layers[:breaks_at], breaking, *layers[breaks_at + 1 :]]
    try:
        with pytest.raises(RuntimeError, match="a layer broke"):
            rounds.run(4, 9, proposal)
    finally:
        model._layers = layers
    for cache in caches:
        if cache is not None:
            assert cache.offset in (9, 10)
            cache.prepare_snapshots([])
            assert cache.take_snapshots() == []


def test_a_request_tells_what_its_drafter_did():
    """STA-1, STA-2: figures, one info line, and the controller's at debug; nothing when off."""
    sequence = continued(PROMPT, 60)
    drafter = ScriptedDrafter(right_but_for_the_last(sequence))
    loaded = drafting_with(loaded_toy(ToyTarget(endless)), drafter, depth=4)
    engine = logging.getLogger("forerun.speculation")
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append((record.levelname, record.getMessage()))
    engine.addHandler(handler)
    level = engine.level
    engine.setLevel(logging.DEBUG)
    try:
        figures = ask(loaded, PROMPT, 16, sampling=AUTO).figures
        silent = ask(loaded, PROMPT, 16).figures
    finally:
        engine.removeHandler(handler)
        engine.setLevel(level)
    drafting = figures.drafting
    assert (drafting.drafter, drafting.rounds) == ("lookup", 5)
    assert (drafting.drafted, drafting.accepted) == (16 - 1, 12 - 1)
    assert (figures.drafted_tokens, figures.accepted_tokens) == (
        drafting.drafted,
        drafting.accepted,
    )
    assert [level for level, _ in lines] == ["INFO", "DEBUG"]
    assert silent.drafting is None
    assert silent.drafted_tokens == 0
