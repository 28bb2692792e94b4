"""Conversations over hybrid layers, with and without a drafter that owns caches: user-reported
faults B01, B03, B05, B07, B15, B17, A19, A21; 02 CAN, KEY; 05 PRE.

Values are checked after each request: what the layers hold is what a cold run makes.
"""

import dataclasses
import itertools

import pytest
import torch

from fixtures.hybrid import CONTEXT, KINDS, HybridModel, Kind, hybrid_model, loaded_hybrid
from fixtures.hybrid_reference import assert_holds, continued
from fixtures.toy import GREEDY, ListSink
from forerun.base.errors import CancelledError
from forerun.contract.drafter import DraftRequest
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.prefix.captures import CaptureRule
from forerun.sampling.refusals import NoAllowedTokenError
from forerun.sampling.sampler import Sampler

LAYOUTS: list[tuple[Kind, ...]] = [KINDS, ("full", "full"), ("sliding", "full"), ("recurrent",)]
EVERY = pytest.mark.parametrize(
    ("kinds", "keys", "look_ahead"),
    list(itertools.product(LAYOUTS, (0, 1), (0, 1))),
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
FIRST = [(index * 5 + 1) % 64 for index in range(40)]


class Chat:
    """A loaded hybrid, whose every request is checked against the bare model."""

    def __init__(self, kinds=KINDS, keys=1, look_ahead=0, **options):
        self.model: HybridModel = hybrid_model(kinds)
        self.keys = keys
        self.loaded = loaded_hybrid(
            self.model, look_ahead_keys=keys, look_ahead=look_ahead, **options
        )

    @torch.inference_mode()
    def ask(self, prompt, budget=4, sink=None):
        sink = sink or ListSink()
        generate(self.loaded, Job(tuple(prompt), frozenset(), GREEDY, budget, sink, sink.cancelled))
        sequence, gap = continued(self.model, prompt, budget + 2)
        assert gap > 1e-4, "choose another prompt: rounding may decide what follows this one"
        answer = sequence[len(prompt) :][:budget]
        assert sink.tokens == answer[: len(sink.tokens)]
        self.offset = assert_holds(self.loaded, self.model, sequence)
        return sink


def tail(seed, length=6):
    return [(seed * 17 + place * 3 + 2) % 64 for place in range(length)]


@EVERY
def test_the_next_turn_evaluates_only_what_is_new(kinds, keys, look_ahead):
    """B01, A19, 02 KEY-7: the end of an answer is a point to resume from, whatever the layers."""
    chat, text = Chat(kinds, keys, look_ahead), list(FIRST)
    known = 0
    for turn in range(4):
        sink = chat.ask(text)
        assert sink.figures.cached_tokens == known
        text += sink.tokens
        known = len(text) - 1
        assert chat.offset == known
        text += tail(turn)


@EVERY
def test_the_end_of_a_prompt_is_a_point_to_resume_from(kinds, keys, look_ahead):
    """B03, B13: the next prompt goes on from the last one without its answer."""
    chat = Chat(kinds, keys, look_ahead, captures=CaptureRule(interval=16))
    chat.ask(FIRST)
    again = chat.ask([*FIRST, *tail(1, 20)])
    assert again.figures.cached_tokens >= len(FIRST) - 4 - keys


@EVERY
def test_a_retry_resumes_where_its_cancelled_attempt_stopped(kinds, keys, look_ahead):
    """PRE-5, CAN-1, CAN-2: after each chunk; the drafter is level by then."""
    for chunks in (1, 2, 5):
        chat = Chat(kinds, keys, look_ahead, chunk=7)
        cancelled = chat.ask(FIRST, sink=ListSink(cancel_at=chunks))
        assert cancelled.error.status == 499
        assert chat.offset == 7 * chunks
        assert chat.ask(FIRST).figures.cached_tokens == 7 * chunks


class LeavingSink(ListSink):
    """Its reader is gone by the time that `tokens` of the prompt are in the caches."""

    def __init__(self, tokens):
        super().__init__()
        self._tokens = tokens

    def prefilled(self, tokens):
        super().prefilled(tokens)
        if tokens >= self._tokens:
            raise CancelledError("the reader left")


@EVERY
def test_a_reader_who_leaves_during_prefill_finds_all_of_it_again(kinds, keys, look_ahead):
    """CAN-1, CAN-2: it is the sink that says so, between two chunks."""
    chat = Chat(kinds, keys, look_ahead, chunk=9)
    for gone_at in (9, 18, 27):
        assert chat.ask(FIRST, sink=LeavingSink(gone_at)).error is not None
        assert chat.offset == gone_at
    assert chat.ask(FIRST).calls[0] == f"started {len(FIRST)} 27"


@EVERY
def test_from_the_third_prompt_on_the_shared_part_is_reused(kinds, keys, look_ahead):
    """B17: only the last words differ each time."""
    chat = Chat(kinds, keys, look_ahead, chunk=512)
    shared = [(index * 3) % 64 for index in range(400)]
    cached = [chat.ask([*shared, *tail(turn)]).figures.cached_tokens for turn in range(4)]
    assert cached[2] >= 400 - keys
    assert cached[3] >= 400 - keys


@pytest.mark.parametrize("length", [18, 300, 2500])
@pytest.mark.parametrize("chunk", [256, 512])
def test_prompts_of_any_length_are_found_again(length, chunk):
    """B15, B03."""
    chat = Chat(chunk=chunk)
    prompt = [(index * index + 3 * index) % 64 for index in range(length)]
    assert length + 4 < CONTEXT
    chat.ask(prompt)
    assert chat.ask(prompt).figures.cached_tokens >= length - 5


@EVERY
def test_branches_and_a_cancelled_branch_are_all_found_again(kinds, keys, look_ahead):
    """B05: what a resumed prefill captures covers its own edge; nothing wrong is served."""
    chat = Chat(kinds, keys, look_ahead, chunk=8, captures=CaptureRule(interval=8))
    one, two, more = tail(1, 30), tail(2, 30), tail(3, 9)
    chat.ask([*FIRST, *one])
    chat.ask([*FIRST, *two], sink=ListSink(cancel_at=2))
    for branch in (one, two, one):
        chat.ask([*FIRST, *branch, *more])
    assert chat.ask([*FIRST, *one, *more]).figures.cached_tokens >= len([*FIRST, *one]) - 1
    assert chat.ask([*FIRST, *two, *more]).figures.cached_tokens >= len([*FIRST, *two]) - 1


@EVERY
def test_a_pair_whose_second_token_changed_is_rewritten(kinds, keys, look_ahead):
    """02 KEY-5, 03 MTP-10: the drafter's state at a token depends on the one after it."""
    chat = Chat(kinds, keys, look_ahead)
    for last in ([7], [8], [8, 7], [9, 8]):
        chat.ask([*FIRST, *last], 1)


class Evicting(ListSink):
    """Takes all stored snapshots away whenever the engine calls."""

    def __init__(self, prefix):
        super().__init__()
        self._prefix = prefix

    def _call(self, what):
        super()._call(what)
        self._prefix.set_budget(0)
        self._prefix.set_budget(2**30)


@EVERY
@pytest.mark.parametrize("during", [False, True])
def test_an_eviction_between_or_within_turns_changes_no_answer(kinds, keys, look_ahead, during):
    """A21: the drafter's offset is the number of rows that it holds."""
    chat, text = Chat(kinds, keys, look_ahead, chunk=8), list(FIRST)
    prefix = chat.loaded.prefix
    for turn in range(3):
        text += chat.ask(text, sink=Evicting(prefix) if during else None).tokens
        prefix.set_budget(0)
        prefix.set_budget(2**30)
        chat.ask([*tail(turn + 7), *FIRST])
        text += tail(turn)


def test_chunks_are_not_cut_where_captures_are_due():
    """PRE-2, 02 SCH-6: scheduled before the loop, crossed by it."""
    chat = Chat(chunk=16, captures=CaptureRule(interval=8))
    sink = chat.ask(FIRST)
    assert sink.calls[1:4] == ["prefilled 16", "prefilled 32", "prefilled 39"]
    ends = {node.end for node in chat.loaded.prefix.nodes() if node.complete}
    assert {7, 15, 23, 31, 35} <= ends


class Looking(ListSink):
    """Notes, when the first token comes, where all layers can resume."""

    def __init__(self, prefix):
        super().__init__()
        self._prefix = prefix
        self.ends = None

    def take(self, tokens, logprobs):
        self.ends = self.ends or {node.end for node in self._prefix.nodes() if node.complete}
        return super().take(tokens, logprobs)


def test_the_drafter_is_settled_before_captures_are_attached():
    """PRE-6, ATT-3: else its layers are one short of the last capture, which is then dropped."""
    chat = Chat()
    chat.ask(FIRST)
    sink = chat.ask(FIRST, sink=Looking(chat.loaded.prefix))
    assert sink.figures.cached_tokens == len(FIRST) - 5
    assert len(FIRST) - 1 in sink.ends  # where the match had ended (BEG-5)


def test_a_session_that_never_drafts_runs_its_head_once_a_phase():
    """03 T6: one batched flush after prefill, and one at the end with the token drawn last."""
    chat = Chat(chunk=512)
    drafter, written = chat.loaded.drafters.owner, []
    write = drafter.write
    drafter.write = lambda tokens, *rest: (written.append(len(tokens)), write(tokens, *rest))[1]
    chat.ask(FIRST, 6)
    assert written == [len(FIRST) - 1, 6]


def test_a_gap_in_what_a_chain_drafter_is_told_is_an_error():
    """DRF-2, MTP-3."""
    session = Chat().loaded.drafters.owner.open(DraftRequest(tuple(FIRST), 0))
    session.committed([1, 2], torch.zeros(2, 32), 0)
    with pytest.raises(AssertionError, match="reported from 3"):
        session.committed([4], torch.zeros(1, 32), 3)


class Refusing(Sampler):
    """Allows no token at one position, once, as a grammar that is at its end does."""

    refuses_at: int | None = None

    def sample(self, slots, logits, positions, allowed=None):
        if positions == [self.refuses_at]:
            self.refuses_at = None
            raise NoAllowedTokenError(slots[0])
        return super().sample(slots, logits, positions, allowed)


@EVERY
def test_a_last_token_without_a_successor_leaves_the_layers_level(kinds, keys, look_ahead):
    """02 STR-4, 04 ORD-9: its pair stays open, so a drafter is one short of the target, which
    goes back by one token; where it cannot, the live state is given up for what is stored."""
    chat = Chat(kinds, keys, look_ahead)
    facts = chat.model.facts
    sampler = Refusing(vocab_size=facts.vocab_size, context_length=CONTEXT, device=facts.device)
    sampler.refuses_at = len(FIRST) + 2
    chat.loaded = dataclasses.replace(chat.loaded, sampler=sampler)
    refused = chat.ask(FIRST)
    assert isinstance(refused.error, NoAllowedTokenError)
    assert len(refused.tokens) == 2
    rewinds = not keys or "recurrent" not in kinds
    assert chat.offset == (len(FIRST) + 2 - keys if rewinds else 0)
    assert chat.ask([*FIRST, *refused.tokens]).figures.cached_tokens >= len(FIRST) - 4 - keys
