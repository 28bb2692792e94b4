"""Draws from the largest logits alone, against draws from all of them: equal bit for bit."""

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.contract.model import Best
from forerun.sampling.options import SamplingOptions
from forerun.sampling.refusals import NoAllowedTokenError
from unit.sampling.making import sampler

CONTEXT = 64
OPTIONS = st.builds(
    SamplingOptions,
    temperature=st.sampled_from([0.0, 1e-4, 0.5, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 3, 8, 40]),
    top_p=st.sampled_from([0.0, 0.4, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.2]),
    repeat_last_n=st.sampled_from([-1, 0, 2, 5, 64]),
    repeat_penalty=st.sampled_from([0.0, 0.8, 1.0, 1.0, 1.3, 1e30]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.75, -0.75]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5, -0.5]),
    seed=st.integers(0, 3),
)
VOCABULARIES = st.sampled_from([2, 5, 12, 60, 700, 6000])
# Few levels make ties, few numbers make rows that hold less than top-k keeps.
LOGITS = st.fixed_dictionaries(
    {
        "vocab": VOCABULARIES,
        "levels": st.sampled_from([1, 3, 12, 10**6]),
        "numbers": st.sampled_from([0, 1, 3, 10**6, 10**6]),
        "scale": st.sampled_from([0.5, 6.0, 1e4]),
        "noise": st.integers(0, 1000),
    }
)


def rows_of(form, rows):
    """Logits around 0, with tokens at random that cannot be drawn at all."""
    generator = torch.Generator().manual_seed(form["noise"])
    size = rows, form["vocab"]
    logits = torch.randint(0, form["levels"], size, generator=generator) / form["levels"] - 0.5
    order = torch.rand(size, generator=generator).argsort(-1)
    return (logits * form["scale"]).masked_fill(order >= form["numbers"], -torch.inf)


def best_of(logits, count):
    values, ids = logits.sort(dim=-1, descending=True, stable=True)
    return Best(values[:, :count].contiguous(), ids[:, :count].contiguous())


def tokens_of(draw):
    """The tokens, or the slot that is refused one."""
    try:
        return draw().tokens.tolist()
    except NoAllowedTokenError as error:
        return error.slot


def history(data, vocab):
    return data.draw(st.lists(st.integers(0, vocab - 1), max_size=9))


@settings(max_examples=250, deadline=None)
@given(data=st.data(), options=OPTIONS, other=OPTIONS, form=LOGITS)
def test_the_deciding_logits_draw_what_all_of_them_draw(data, options, other, form):
    """ORD-1, ORD-6, ORD-9, PEN-1, BAT-2, SED-2: in any batch, step after step, ties included."""
    rows, vocab = data.draw(st.integers(1, 3)), form["vocab"]
    whole, few = sampler(vocab, CONTEXT), sampler(vocab, CONTEXT)
    for slot in range(rows):
        mine = replace(other if data.draw(st.booleans()) else options, seed=slot)
        prior = history(data, vocab)
        for made in (whole, few):
            made.add(slot, mine, prior)
    slots = data.draw(st.permutations(range(rows)))
    for at in range(3):
        counts = [few.deciding(slot) for slot in slots]
        if None in counts:
            return
        logits = rows_of(form | {"noise": form["noise"] + at}, rows)
        best = best_of(logits, min(vocab, max(counts) + data.draw(st.integers(0, 2))))
        positions = [at + 7 * row for row in range(rows)]
        want = tokens_of(lambda: whole.sample(slots, logits, positions))  # noqa: B023
        assert tokens_of(lambda: few.sample_best(slots, best, positions)) == want  # noqa: B023
        if isinstance(want, int):
            return


@settings(max_examples=250, deadline=None)
@given(data=st.data(), options=OPTIONS, form=LOGITS)
def test_the_deciding_logits_make_the_distribution_that_all_make(data, options, form):
    """DST-2, DST-4, PEN-1: bit for bit in every row of a verification, and nothing changes."""
    vocab = form["vocab"]
    made = sampler(vocab, CONTEXT)
    made.add(0, options, history(data, vocab))
    made.commit(0, history(data, vocab))
    drafts = torch.tensor(history(data, vocab)[:4], dtype=torch.int64)
    rows = data.draw(st.integers(1, len(drafts) + 1))
    count = made.deciding(0, len(drafts))
    if count is None:
        return
    logits = rows_of(form, rows)
    few = made.distribution_best(0, best_of(logits, count), drafts)
    whole = made.distribution(0, logits, drafts)
    assert few.probs.shape == whole.probs.shape  # DST-7: rows of both can be joined
    assert torch.equal(few.dense(vocab), whole.dense(vocab))
    again = made.distribution_best(0, best_of(logits, count), drafts)
    assert torch.equal(few.dense(vocab), again.dense(vocab))
