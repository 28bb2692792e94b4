"""Unseeded sampling through whole requests, and memory: 03 T11, RND-6, RND-7, MEM-1."""

import dataclasses
import random

import pytest
import torch

from fixtures.scripted_drafter import ScriptedDrafter, drafting_with
from fixtures.toy import EOS, VOCABULARY, ToyTarget, ask, endless, loaded_toy
from forerun.engine.memory import anonymous_bytes, cache_bytes
from forerun.sampling.distribution import Distribution
from forerun.sampling.options import SamplingOptions
from forerun.speculation.bound import BoundDrafters
from forerun.speculation.drafters.lookup import LookupDrafter

REQUESTS = 1500
PEAK = 2.0
ONCE_IN_A_MILLION = 56.5  # of chi-square with 15 degrees of freedom
PROMPT = [3, 7]


def after(tokens):
    """Depends on the last token, and is never EOS."""
    return 6 + tokens[-1] * 7 % (VOCABULARY - 6)


def row(token):
    scores = torch.zeros(VOCABULARY)
    scores[after([token])] = PEAK
    return scores.softmax(-1).double()


def marginals(count):
    """Of the tokens at the first `count` places of an answer."""
    found = [row(PROMPT[-1])]
    rows = torch.stack([row(token) for token in range(VOCABULARY)])
    while len(found) < count:
        found.append(found[-1] @ rows)
    return found


def likeliest(known, most):
    drafts, last = [], known[-1]
    for _ in range(most):
        drafts.append(last := after([last]))
    return drafts


def spread(tokens):
    return Distribution(torch.full((len(tokens), VOCABULARY), 1 / VOCABULARY))


@pytest.mark.parametrize("drafts", ["likeliest", "spread", "unlikely"])
def test_texts_are_distributed_as_without_drafts(drafts):
    """T11, T14: at each place of a round, the bonus included, for a drafter that is certain of a
    good or of a bad token, and for one that draws from a distribution of its own."""
    dice = random.Random(5)
    script = {
        "likeliest": likeliest,
        "spread": lambda _, most: dice.choices(range(VOCABULARY), k=most),
        "unlikely": lambda _, most: [2] * most,
    }[drafts]
    drafter = ScriptedDrafter(script)
    if drafts == "spread":
        drafter.rows = spread
    loaded = drafting_with(loaded_toy(ToyTarget(after, peak=PEAK)), drafter, depth=2)
    options = SamplingOptions(temperature=1.0, top_k=0, top_p=1.0)
    places = 3  # two drafts and the bonus, or what follows a refusal
    counts = torch.zeros(places, VOCABULARY, dtype=torch.float64)
    complete = 0
    for _ in range(REQUESTS):
        sink = ask(loaded, PROMPT, places, sampling=options)
        tokens = [*sink.tokens, *([EOS] if sink.reason == "stop" else [])]
        for place, token in enumerate(tokens):
            counts[place, token] += 1
        complete += len(tokens) == places
    assert complete > REQUESTS / 2
    expected = [REQUESTS * marginal for marginal in marginals(places)]
    distance = (counts[0] - expected[0]).square() / expected[0]
    assert float(distance.sum()) < ONCE_IN_A_MILLION
    for place in (1, 2):  # given that the text went on, which depends on the token before
        seen, alive = counts[place], continued(place)
        wanted = alive / alive.sum() * seen.sum()
        assert float(((seen - wanted).square() / wanted).sum()) < ONCE_IN_A_MILLION, place


def continued(place):
    """Weights of the tokens at a place of the texts that have not ended before it."""
    weights = row(PROMPT[-1])
    rows = torch.stack([row(token) for token in range(VOCABULARY)])
    for _ in range(place):
        weights = weights.clone()
        weights[EOS] = 0
        weights = weights @ rows
    return weights


def test_a_long_generation_with_drafts_grows_by_what_it_holds():
    """MEM-1: no row, capture or proposal outlives its round."""
    loaded = loaded_toy(ToyTarget(lambda tokens: endless(tokens[-7:])), context=4000)
    loaded = dataclasses.replace(loaded, drafters=BoundDrafters.of(lookup=LookupDrafter()))
    greedy = SamplingOptions(temperature=0.0)
    ask(loaded, PROMPT, 200, sampling=greedy)
    memory, held = anonymous_bytes(), cache_bytes(loaded)
    sink = ask(loaded, PROMPT, 1000, sampling=greedy)
    assert sink.figures.generated_tokens == 1000
    assert sink.figures.drafted_tokens > 0
    written = cache_bytes(loaded) - held
    assert anonymous_bytes() - memory < written + 3 * 1024**2
