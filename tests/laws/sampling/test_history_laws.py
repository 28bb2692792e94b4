"""The ring of a slot holds what a plain list of all its tokens ends with (SLT, DST-4, F3)."""

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.sampling.penalty_history import PenaltyHistory

TOKENS = st.lists(st.integers(0, 9), max_size=9)
CAPACITY = st.integers(0, 5)
STEPS = st.lists(st.one_of(st.integers(0, 9), TOKENS), max_size=8)
CPU = torch.device("cpu")


def seen(window, row=0):
    """The tokens of a window's row, sorted: order inside it means nothing."""
    if window is None:
        return []
    ids = window.ids[row]
    return sorted((ids if window.live is None else ids[window.live[row]]).tolist())


def last(tokens, count):
    return sorted(tokens[len(tokens) - min(count, len(tokens)) :])


def write(history, row, step):
    if isinstance(step, list):
        history.extend(row, step)
        return step
    history.append([row], torch.tensor([step]))
    return [step]


@given(capacity=CAPACITY, prior=TOKENS, steps=STEPS)
def test_a_window_is_the_end_of_all_that_was_written(capacity, prior, steps):
    """SLT-2, SLT-4, SLT-6: drawn tokens one by one, committed ones in runs of any length."""
    history, tokens = PenaltyHistory(10, CPU), list(prior)
    history.add(capacity, prior)
    for step in steps:
        tokens += write(history, 0, step)
        assert seen(history.window([0])) == last(tokens, capacity)


@given(capacity=CAPACITY, prior=TOKENS, steps=STEPS, drafts=TOKENS, data=st.data())
def test_a_chain_row_sees_the_end_of_history_and_drafts(capacity, prior, steps, drafts, data):
    """DST-2, DST-4: whether the ring is full, fills on the way or is lapped by the drafts."""
    history, tokens = PenaltyHistory(10, CPU), list(prior)
    history.add(capacity, prior)
    for step in steps:
        tokens += write(history, 0, step)
    rows = data.draw(st.integers(1, len(drafts) + 1))
    window = history.chain(0, torch.tensor(drafts, dtype=torch.int64), rows)
    counts = history.counts_along(0, drafts, rows)
    for row in range(rows):
        chain = drafts[: len(drafts) - rows + 1 + row]
        assert seen(window, row) == last(tokens + chain, capacity)
        assert sorted(counts[row].elements()) == last(tokens + chain, capacity)
    assert seen(history.window([0])) == last(tokens, capacity)


@settings(max_examples=40)
@given(
    slots=st.lists(st.tuples(CAPACITY, TOKENS), min_size=1, max_size=4),
    steps=st.lists(st.tuples(st.permutations(range(4)), st.integers(0, 3)), max_size=6),
)
def test_rows_do_not_disturb_each_other(slots, steps):
    """SLT-2, SLT-3: rows join, are written together in any order, and leave."""
    history, lists = PenaltyHistory(10, CPU), []
    for capacity, prior in slots:
        history.add(capacity, prior)
        lists.append((capacity, list(prior)))
    for number, (order, leaving) in enumerate(steps):
        rows = [row for row in order if row < len(lists)][: number + 1]
        history.append(rows, torch.tensor([(number + row) % 10 for row in rows]))
        for row in rows:
            lists[row][1].append((number + row) % 10)
        if len(lists) > 1 and leaving < len(lists):
            history.remove(leaving)
            del lists[leaving]
        rows = [row for row in order if row < len(lists)]
        window = history.window(rows)
        for place, row in enumerate(rows):
            capacity, tokens = lists[row]
            assert seen(window, place) == last(tokens, capacity)


def test_two_hundred_steps_equal_a_growing_list():
    """F3."""
    chosen = random.Random(3)
    history, tokens = PenaltyHistory(10, CPU), []
    history.add(7, tokens)
    for _ in range(200):
        step = chosen.choice([chosen.randrange(10), [chosen.randrange(10) for _ in range(4)]])
        tokens = tokens + write(history, 0, step)
        assert seen(history.window([0])) == last(tokens, 7)
