"""Speculation is exact: ids, caches and drafters are what they are without drafts (03 GEN-6).

Over random fp32 models of every kind of layer, and over loaded ones of the hybrid family with their
own head. After each request all that the layers hold, the chain drafter's too, is compared with one
forward of the bare model, 5e-5 of each tensor's scale.
"""

import copy
import dataclasses
import itertools

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fixtures.hybrid import KINDS, VOCABULARY, WINDOW, loaded_hybrid
from fixtures.hybrid_reference import assert_holds, continued
from fixtures.prefix_invariants import check
from fixtures.real_hybrid import REAL, Layout, model_of, named
from fixtures.scripted_drafter import ScriptedDrafter, drafting_with, oracle
from fixtures.toy import ListSink
from forerun.engine.generate import generate
from forerun.engine.job import Job
from forerun.sampling.options import SamplingOptions

GREEDY = SamplingOptions(temperature=0.0)
LAYOUTS: list[Layout] = [
    ("full", "full"),
    ("sliding", "full"),
    ("recurrent", "recurrent"),
    KINDS,
    *REAL,
]
BUDGET = 12
NEAR = 1e-4  # of two logits: the next token depends on the order of additions
# a window of 8 with a slack of 16 wraps at 24: rounds before it, over it and long after it
LENGTHS = {"before": 3, "at": 24 - BUDGET // 2, "after": 60}
SEQUENCE = [(index * 5 + 1) % VOCABULARY for index in range(200)]


class Replays:
    """As under a captured graph, the next forward writes over the outputs of the one before."""

    last = None

    def forward(self, batch, caches):
        if self.last is not None:
            self.last.hidden.fill_(float("nan"))
        self.last = super().forward(batch, caches)
        return self.last


def replayed(model):
    served = copy.copy(model)
    served.__class__ = type("Replayed", (Replays, type(model)), {})
    return served


def off(token):
    return (token + 1) % VOCABULARY


def scripts(sequence, eos):
    """Drafters by name. Those that are wrong at a place are right before it and behind it."""
    right = oracle(sequence)

    def wrong_at(place):
        def script(known, most):
            drafts = list(right(known, most))
            return [off(t) if i == place else t for i, t in enumerate(drafts)]

        return script

    def ends_at(place):
        return lambda known, most: [
            eos if i == place else t for i, t in enumerate(right(known, most))
        ]

    return {
        "right": right,
        "wrong": lambda known, most: [off(token) for token in right(known, most)],
        **{f"wrong at {place}": wrong_at(place) for place in range(1, 5)},
        **{f"ends at {place}": ends_at(place) for place in range(3)},
        "past the budget": lambda known, most: right(known, most + 5),
        "nothing": lambda *_: (),
        "varying": lambda known, most: right(known, len(known) * 7 % (most + 1)),
    }


def expected(sequence, prompt, budget, eos):
    answer = sequence[len(prompt) :][:budget]
    end = next((place for place, token in enumerate(answer) if token == eos), None)
    return (answer, "length") if end is None else (answer[:end], "stop")


def ask(loaded, prompt, budget, eos, *, sampling=GREEDY, sink=None):
    sink = sink or ListSink()
    with torch.inference_mode():
        generate(
            loaded,
            Job(tuple(prompt), frozenset({eos}), sampling, budget, sink, sink.cancelled),
        )
    return sink


def assert_level(loaded, model, sequence, drafter=None):
    """All layers as never having drafted; drafters told of what the target holds, no more."""
    with torch.inference_mode():
        offset = assert_holds(loaded, model, sequence)
    check(loaded.prefix, [*loaded.caches, *loaded.drafters.caches])
    if drafter is not None:
        assert drafter.reported[:offset] == list(sequence[:offset])
    return offset


@pytest.mark.parametrize("wrapped", LENGTHS)
@pytest.mark.parametrize("kinds", LAYOUTS, ids=named)
def test_greedy_text_and_caches_are_those_of_plain_decoding(kinds, wrapped):
    """RND-1, RND-4, RND-6 to RND-9, RND-12, RND-14: every script at every depth from 1 to 8 (of
    loaded models at three of them), one after the other over one prefix cache, with a chain
    drafter's own caches beside it."""
    model, prompt = model_of(kinds), SEQUENCE[: LENGTHS[wrapped]]
    sequence, gap = continued(model, prompt, BUDGET + 10)
    assert gap > NEAR, "choose another prompt"
    loaded = loaded_hybrid(model)
    eos = sequence[len(prompt) + 9]
    rounds = 0
    depths = (1, 4, 8) if isinstance(kinds, str) else range(1, 9)
    for depth, (name, script) in itertools.product(depths, scripts(sequence, eos).items()):
        drafter = ScriptedDrafter(script)
        sink = ask(
            drafting_with(loaded, drafter, depth=depth),
            prompt,
            BUDGET,
            eos,
            sampling=dataclasses.replace(GREEDY, draft="lookup"),
        )
        told = f"{name} at depth {depth}"
        assert (sink.tokens, sink.reason) == expected(sequence, prompt, BUDGET, eos), told
        offset = assert_level(loaded, model, sequence, drafter)
        assert offset == len(prompt) + len(sink.tokens) - (sink.reason == "length"), told
        rounds += sink.figures.drafting.rounds
    assert rounds > 0


@pytest.mark.parametrize("look_ahead", [0, 1])
@pytest.mark.parametrize("budget", range(10))
def test_a_budget_ends_the_text_where_it_does_without_drafts(budget, look_ahead):
    """RND-13, RND-1 (one token is kept for what follows the drafts): max_tokens 0 to 9."""
    model, prompt = model_of(KINDS), SEQUENCE[:20]
    sequence, gap = continued(model, prompt, 20)
    assert gap > NEAR
    loaded = loaded_hybrid(model, look_ahead=look_ahead)
    for depth, script in itertools.product((1, 3, 8), scripts(sequence, 7).values()):
        drafter = ScriptedDrafter(script)
        lookup = dataclasses.replace(GREEDY, draft="lookup")
        with_drafts = drafting_with(loaded, drafter, depth=depth)
        sink = ask(with_drafts, prompt, budget, -1, sampling=lookup)
        assert (sink.tokens, sink.reason) == (sequence[20 : 20 + budget], "length")
        assert all(most < budget for _, most, _ in drafter.asked)
        assert_level(loaded, model, sequence, drafter)


REQUESTS = st.fixed_dictionaries(
    {
        "length": st.integers(1, 40),
        "budget": st.integers(0, 14),
        "depth": st.integers(1, 15),
        "script": st.sampled_from(sorted(scripts(SEQUENCE, 0))),
        "draft": st.sampled_from(["lookup", "model", "off", "auto"]),
        "ends": st.none() | st.integers(0, 8),
        "stop_at": st.none() | st.integers(1, 9),
        "cancel_at": st.none() | st.integers(0, 12),
    }
)


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.sampled_from(LAYOUTS),
    look_ahead=st.sampled_from([0, 1]),
    chunk=st.sampled_from([3, 16, 50]),
    replays=st.booleans(),
    requests=st.lists(REQUESTS, min_size=1, max_size=4),
)
def test_whatever_was_drafted_before_an_answer_is_a_cold_one(
    kinds, look_ahead, chunk, replays, requests
):
    """T7, T15, GEN-3, RND-10, RND-11, RND-15, RND-18, 02 KEY-7: requests that draft with either
    drafter, both in turn, or none, end by budget, stop token or stop string, or are cancelled at
    any call."""
    model = model_of(kinds)
    served = replayed(model) if replays else model
    loaded = loaded_hybrid(served, look_ahead=look_ahead, chunk=chunk)
    for request in requests:
        prompt = SEQUENCE[: request["length"]]
        sequence, gap = continued(model, prompt, request["budget"] + 20)
        assume(gap > NEAR)
        eos = -1 if request["ends"] is None else sequence[len(prompt) + request["ends"]]
        drafter = ScriptedDrafter(scripts(sequence, max(eos, 0))[request["script"]])
        sink = ListSink(stop_at=request["stop_at"], cancel_at=request["cancel_at"])
        sampling = dataclasses.replace(GREEDY, draft=request["draft"])
        drafting = drafting_with(loaded, drafter, depth=request["depth"])
        ask(drafting, prompt, request["budget"], eos, sampling=sampling, sink=sink)
        tokens, reason = expected(sequence, prompt, request["budget"], eos)
        if request["stop_at"] is not None and len(tokens) >= request["stop_at"]:
            tokens, reason = tokens[: request["stop_at"]], "stop"
        if sink.error is None:
            assert (sink.tokens, sink.reason) == (tokens, reason)
        else:
            assert sink.error.status == 499
            assert sink.tokens == tokens[: len(sink.tokens)]
        assert_level(loaded, model, sequence)


SAMPLED = st.builds(
    SamplingOptions,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    seed=st.integers(0, 2**63 - 1),
    top_k=st.sampled_from([0, 5, 40]),
    top_p=st.sampled_from([0.9, 1.0]),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    repeat_last_n=st.sampled_from([4, 64]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.sampled_from([(), ((3, 2.0), (9, -100.0))]),
    logprobs=st.booleans(),
    top_logprobs=st.just(4),
)


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.sampled_from(LAYOUTS),
    options=SAMPLED,
    depth=st.integers(1, 8),
    script=st.sampled_from(sorted(scripts(SEQUENCE, 0))),
    draft=st.sampled_from(["lookup", "model"]),
    length=st.sampled_from([2, 9, WINDOW + 16, 50]),
)
def test_a_seeded_text_is_the_same_with_and_without_drafts(
    kinds, options, depth, script, draft, length
):
    """T12, T16, GEN-4, GEN-5, RND-17, 04 SED-2: at any temperature, with filters, penalties along
    the chain (DST-2), bias and log-probabilities, for a right and for a wrong drafter."""
    model, prompt = model_of(kinds), SEQUENCE[:length]
    plainly = dataclasses.replace(options, draft="off")
    plain = ask(loaded_hybrid(model), prompt, BUDGET, -1, sampling=plainly)
    sequence = [*prompt, *plain.tokens, *SEQUENCE]
    drafter = ScriptedDrafter(scripts(sequence, 7)[script])
    loaded = drafting_with(loaded_hybrid(model), drafter, depth=depth)
    for _ in range(2):  # cold and warm
        drafted = ask(
            loaded, prompt, BUDGET, -1, sampling=dataclasses.replace(options, draft=draft)
        )
        assert drafted.tokens == plain.tokens
        assert [entry.token for entry in drafted.logprobs] == (
            drafted.tokens if options.logprobs else []
        )
        for ours, theirs in zip(drafted.logprobs, plain.logprobs, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert dict(ours.top) == pytest.approx(dict(theirs.top), abs=1e-4)
        assert_level(loaded, model, [*prompt, *plain.tokens, 0])
