"""Drives a sampler through arbitrary calls, against plain Python that keeps every token.

What a call must draw is worked out from scores, options, seed and position alone. A draw that
rounding could decide either way is not compared, and the model follows it.
"""

from contextlib import contextmanager
from dataclasses import replace

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from forerun.sampling.options import SamplingOptions
from unit.sampling.making import sampler, words
from unit.sampling.plain_sampler import Margin, plain_distribution, plain_draw, plain_scores

VOCAB, CONTEXT = 6, 24
ROUNDING = 1e-4
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=7)
# Apart by a quarter at least: ties have tests of their own, and rounding must not decide here.
LOGITS = st.lists(st.integers(-12, 12), min_size=VOCAB, max_size=VOCAB, unique=True).map(
    lambda values: [value / 4 for value in values]
)
OPTIONS = st.builds(
    SamplingOptions,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 4, 40]),
    top_p=st.sampled_from([0.0, 0.4, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.2]),
    repeat_last_n=st.sampled_from([-1, 0, 2, 3, 64]),
    repeat_penalty=st.sampled_from([0.0, 1.0, 1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.3]),
    logit_bias=st.sampled_from([(), ((2, 1.625),), ((0, -100.0), (5, 0.875))]),
    seed=st.integers(0, 3),
)
ALLOWED = st.sets(st.integers(0, VOCAB - 1), min_size=1)
SLOT = st.integers(0, 2)


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def rows_of(logits):
    return torch.tensor(logits, dtype=torch.float32).view(-1, VOCAB)


def expected(options, history, logits, allowed, margin):
    """The plain distribution of one row."""
    scores = plain_scores(
        dict(enumerate(logits)),
        options.normalised(vocab_size=VOCAB, context_length=CONTEXT),
        history,
        allowed,
    )
    return plain_distribution(scores, options, margin)


class SamplerLaws(RuleBasedStateMachine):
    """SLT-1, SLT-3, SLT-6, ORD-1, PEN-1, BAT-1, SED-2, DST-1: whatever came before."""

    def __init__(self) -> None:
        super().__init__()
        self.sampler = sampler(VOCAB, CONTEXT)
        self.slots: dict[int, tuple[SamplingOptions, list[int]]] = {}
        self.position = 0

    @initialize(options=st.tuples(OPTIONS, OPTIONS), priors=st.tuples(TOKENS, TOKENS))
    def begin(self, options, priors):
        for slot in (0, 1):
            self.register(slot, options[slot], priors[slot])

    @rule(slot=SLOT, options=OPTIONS, prior=TOKENS)
    def register(self, slot, options, prior):
        """An unknown slot may be removed too."""
        self.sampler.remove(slot)
        self.slots.pop(slot, None)
        self.sampler.add(slot, options, prior)
        self.slots[slot] = (options, list(prior))

    @rule(slot=SLOT, tokens=TOKENS)
    def commit(self, slot, tokens):
        if slot in self.slots:
            self.sampler.commit(slot, tokens)
            self.slots[slot][1].extend(tokens)

    @rule(data=st.data())
    def sample(self, data):
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.slots)), unique=True, min_size=1))
        logits = [data.draw(LOGITS) for _ in chosen]
        masks = [data.draw(ALLOWED) for _ in chosen] if data.draw(st.booleans()) else None
        positions = [self.position + n for n in range(len(chosen))]
        self.position += 1
        drawn = self.sampler.sample(
            chosen, rows_of(logits), positions, words(*masks, vocab=VOCAB) if masks else None
        ).tokens.tolist()
        for row, (slot, token) in enumerate(zip(chosen, drawn, strict=True)):
            options, history = self.slots[slot]
            allowed, margin = masks[row] if masks else set(range(VOCAB)), Margin()
            probs = expected(options, history, logits[row], allowed, margin)
            want = plain_draw(probs, options.seed, positions[row], margin)
            assert token == want or margin.least < ROUNDING
            assert token in allowed
            history.append(token)

    @rule(data=st.data(), logits=LOGITS, drafts=TOKENS)
    def look_ahead(self, data, logits, drafts):
        slot = data.draw(st.sampled_from(sorted(self.slots)))
        rows = data.draw(st.integers(1, len(drafts) + 1))
        options, history = self.slots[slot]
        found = self.sampler.distribution(
            slot, rows_of(logits * rows), torch.tensor(drafts, dtype=torch.int64)
        ).dense(VOCAB)
        for row in range(rows):
            chain, margin = drafts[: len(drafts) - rows + 1 + row], Margin()
            probs = expected(options, history + chain, logits, set(range(VOCAB)), margin)
            want = torch.tensor([probs.get(token, 0.0) for token in range(VOCAB)])
            if margin.least >= ROUNDING:
                torch.testing.assert_close(found[row], want, atol=1e-5, rtol=1e-4)

    @invariant()
    def every_slot_is_known(self):
        for slot, (options, _) in self.slots.items():
            assert self.sampler.options(slot).seed == options.seed


def test_a_sampler_draws_what_plain_python_draws():
    """ORD-1, PEN-1, SED-2: see SamplerLaws, whose rules are driven in any order."""
    run_state_machine_as_test(
        SamplerLaws, settings=settings(max_examples=60, stateful_step_count=20, deadline=None)
    )


@settings(max_examples=60)
@given(
    options=OPTIONS,
    seeds=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    priors=st.lists(TOKENS, min_size=4, max_size=4),
    order=st.permutations(range(4)),
    steps=st.lists(st.lists(LOGITS, min_size=4, max_size=4), min_size=1, max_size=4),
)
def test_a_batch_of_four_equals_four_single_calls(options, seeds, priors, order, steps):
    """F14, BAT-2, BAT-3: bit for bit, with one recipe, for any rings and in any order."""
    together, alone = sampler(VOCAB, CONTEXT), sampler(VOCAB, CONTEXT)
    for made in (together, alone):
        for slot in range(4):
            made.add(slot, replace(options, seed=seeds[slot]), priors[slot])
    for at, logits in enumerate(steps):
        batch = together.sample(order, rows_of(logits), [at] * 4).tokens
        single = [
            alone.sample([slot], rows_of(logits[row]), [at]).tokens
            for row, slot in enumerate(order)
        ]
        assert torch.equal(batch, torch.cat(single))


@settings(max_examples=60)
@given(
    options=OPTIONS,
    other=OPTIONS,
    priors=st.lists(TOKENS, min_size=3, max_size=3),
    logits=st.lists(LOGITS, min_size=3, max_size=3),
    wants=st.booleans(),
)
def test_the_fused_and_the_serial_pass_agree(options, other, priors, logits, wants):
    """F4, BAT-2: a slot with a recipe of its own in the call makes the whole call serial."""
    assume(other != options)
    fused, serial = sampler(VOCAB, CONTEXT), sampler(VOCAB, CONTEXT)
    options = replace(options, logprobs=wants, top_logprobs=2)
    for slot in (0, 1):
        for made in (fused, serial):
            made.add(slot, options, priors[slot])
    serial.add(2, other, priors[2])
    first = fused.sample([0, 1], rows_of(logits[:2]), [3, 9])
    second = serial.sample([0, 2, 1], rows_of([logits[0], logits[2], logits[1]]), [3, 5, 9])
    assert torch.equal(first.tokens, second.tokens[[0, 2]])
    assert (first.logprobs is not None) == wants
    if first.logprobs and second.logprobs:
        assert torch.equal(first.logprobs.token, second.logprobs.token[[0, 2]])
        assert torch.equal(first.logprobs.top_values, second.logprobs.top_values[[0, 2]])


@settings(max_examples=20)
@given(
    options=OPTIONS,
    vocab=st.sampled_from([33, 1000, 49_153]),
    seed=st.integers(0, 1000),
    half=st.booleans(),
)
def test_a_row_of_a_real_vocabulary_draws_the_same_in_any_company(options, vocab, seed, half):
    """BAT-3, SED-2: plain decoding draws one row, a verification several; ties in half precision.

    Probabilities are compared bit for bit, since a last bit may decide a draw.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, vocab, generator=generator) * 3
    logits = logits.bfloat16() if half else logits
    made = sampler(vocab, CONTEXT)
    made.add(0, options, [1, 2, 3])
    with threads(2):  # which a long row alone would be split over
        whole = made.distribution(0, logits)
        singles = [made.distribution(0, logits[row : row + 1]) for row in range(3)]
    for row, alone in enumerate(singles):
        assert torch.equal(whole.rows(slice(row, row + 1)).dense(vocab), alone.dense(vocab))


@settings(max_examples=40)
@given(
    vocab=st.sampled_from([50, 700, 6000]),
    count=st.integers(2, 45),
    levels=st.sampled_from([6, 10**6]),
    allowed=st.sampled_from([None, 3, 60]),
    seed=st.integers(0, 1000),
)
def test_top_k_keeps_the_largest_and_of_equals_the_smallest_ids(
    vocab, count, levels, allowed, seed
):
    """ORD-2, ORD-6, F9: where most scores tie or none does, and with a row mostly blocked."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, levels, (2, vocab), generator=generator) * (6 / levels)
    if allowed:
        scores[0].masked_fill_(torch.arange(vocab) >= allowed, -torch.inf)
    made = sampler(vocab, CONTEXT)
    made.add(0, SamplingOptions(temperature=1.0, top_k=count, top_p=1.0), [])
    found = made.distribution(0, scores).dense(vocab)
    for row in range(2):
        by_score = sorted(range(vocab), key=lambda t: (-scores[row, t].item(), t))
        want = {token for token in by_score[:count] if scores[row, token] > -torch.inf}
        assert set(found[row].nonzero().flatten().tolist()) == want
