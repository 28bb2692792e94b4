"""Drives recurrent caches through arbitrary calls: each holds the fold of its list of tokens.

A token is written with a state of our own making, in whole numbers that float32 holds exactly, so
that the model of a sequence is the list of its tokens and states are compared to the last bit. Two
caches run side by side, so that snapshots also go where they were not taken.

Rules: CTR-1, CTR-3, CTR-4, CTR-5, CTR-6, CTR-8, PND-3, PND-4, PND-5, PND-6, PND-7, PND-8, REC-2,
REC-3, REC-4, REC-5, REC-6, REC-7, REC-8, ACC-1, ACC-2, ACC-3.
"""

from dataclasses import dataclass, field, replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from forerun.cache import recurrent
from forerun.cache.recurrent import RecurrentCache, StateShape
from forerun.contract.recurrence import RecurrentInputs, RecurrentState, RecurrentUpdate

TAIL, HEADS, KEY_DIM = 3, 2, 2
SHAPE = StateShape(TAIL, 1, HEADS, 1, KEY_DIM, torch.device("cpu"))
STATE_BYTES = 4 * TAIL + 4 * HEADS * KEY_DIM
BETA = (2.0, 1.0)  # a head of sums with alternating signs, and one that keeps what came last
WHICH = st.integers(0, 1)
BACK = st.sampled_from([0, 0, 0, -1, 1, 3])
TOKENS = st.lists(st.integers(1, 9), min_size=0, max_size=5)
LONG = st.lists(st.integers(1, 9), min_size=1, max_size=21)  # past the stepwise scan
FORMS = st.sampled_from(["states", "inputs", "driver"])


def fold(tokens):
    """S += beta (v - S k) k with the key (1, 0) for an odd token, (0, 1) for an even one."""
    sums = [[0, 0], [0, 0]]
    for token in tokens:
        for head, beta in enumerate(BETA):
            sums[head][1 - token % 2] += beta * (token - sums[head][1 - token % 2])
    tail = [*[0] * TAIL, *tokens][len(tokens) :]
    return RecurrentState(
        torch.tensor(tail, dtype=torch.float32).view(1, TAIL, 1),
        torch.tensor(sums, dtype=torch.float32).view(1, HEADS, 1, KEY_DIM),
    )


def inputs(tokens, surplus):
    """What `fold` reads, and `surplus` columns of padding that nobody may read."""

    def rows(of, *shape):
        filled = torch.tensor([of(token) for token in tokens], dtype=torch.float32)
        filled = filled.view(1, len(tokens), *shape)
        return torch.cat((filled, torch.full((1, surplus, *shape), float("nan"))), dim=1)

    return RecurrentInputs(
        conv=rows(lambda token: token, 1),
        keys=rows(lambda token: [token % 2, 1 - token % 2], 1, KEY_DIM),
        values=rows(lambda token: [token] * HEADS, HEADS, 1),
        decay=rows(lambda _: [1] * HEADS, HEADS),
        beta=rows(lambda _: BETA, HEADS),
    )


def fill(state, tokens):
    made = fold(tokens)
    state.conv.copy_(made.conv)
    state.delta.copy_(made.delta)


def same(state, tokens):
    made = fold(tokens)
    return torch.equal(state.conv, made.conv) and torch.equal(state.delta, made.delta)


def fails(*_):
    raise torch.OutOfMemoryError("no memory for a capture")


@dataclass
class Sequence:
    """What one cache should hold, and what is due of the schedule that it was given."""

    cache: RecurrentCache = field(default_factory=lambda: RecurrentCache(SHAPE))
    tokens: list[int] = field(default_factory=list)
    schedule: list[int] | None = None
    captured: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    base: int = 0
    lives: tuple[int, ...] = ()  # generation and addresses

    def reach(self, start, end):
        for offset in self.schedule or ():
            if start <= offset <= end and offset not in self.captured:
                self.captured[offset] = (self.base, self.tokens[:offset])
                self.base = offset

    def due(self, start, end):
        return [o for o in self.schedule or () if start <= o <= end and o not in self.captured]


@dataclass(eq=False)
class Held:
    """A snapshot and the tokens that restoring it leaves."""

    snapshot: object
    tokens: list[int]


class RecurrentLaws(RuleBasedStateMachine):
    snapshots = Bundle("snapshots")

    def __init__(self):
        super().__init__()
        self.pair = [Sequence(), Sequence()]
        self.open = []

    @rule(which=WHICH, tokens=LONG, surplus=st.integers(0, 2), form=FORMS)
    def write(self, which, tokens, surplus, form):
        """Padding is not counted, and a driver's write ends with as many tokens as it says."""
        seq = self.pair[which]
        seq.cache.get(1, torch.float32)
        update = self.update(seq, tokens, surplus, form)
        seq.cache.put(update)
        start = len(seq.tokens)
        seq.tokens = seq.tokens + tokens
        seq.reach(start, len(seq.tokens))

    def update(self, seq, tokens, surplus, form):
        start, before = len(seq.tokens), seq.tokens
        if form == "driver":
            write = seq.cache.begin_write(len(tokens) + surplus)
            assert same(write.before, before)
            padded = before + tokens + [0] * surplus
            for split, state in zip(write.splits, write.update.splits, strict=True):
                fill(state, padded[: start + split])
            fill(write.update.end, before + tokens)
            return replace(write.update, lengths=(len(tokens),))
        splits = seq.cache.snapshot_splits(len(tokens))
        assert splits == [o - start for o in seq.due(start + 1, start + len(tokens) - 1)]
        end, lengths = fold(before + tokens), (len(tokens),)
        if form == "inputs":
            return RecurrentUpdate(end, lengths, inputs=inputs(tokens, surplus))
        states = [fold(before + tokens[:split]) for split in splits]
        return RecurrentUpdate(end, lengths, tuple(states))

    @rule(which=WHICH, tokens=st.integers(1, 16))
    def abandon(self, which, tokens):
        """A driver's write of no tokens undoes what it began, whatever lies in its tensors."""
        seq = self.pair[which]
        seq.cache.get(1, torch.float32)
        write = seq.cache.begin_write(tokens)
        for state in (*write.update.splits, write.update.end):
            state.conv.fill_(float("nan"))
            state.delta.fill_(float("nan"))
        seq.cache.put(replace(write.update, lengths=(0,)))
        seq.reach(len(seq.tokens), len(seq.tokens))

    @rule(which=WHICH, tokens=LONG, form=FORMS)
    def fail(self, which, tokens, form):
        """A `put` that cannot copy what is due has put nothing."""
        seq = self.pair[which]
        seq.cache.get(1, torch.float32)
        start = len(seq.tokens)
        update = self.update(seq, tokens, 0, form)
        if not seq.due(start, start + len(tokens)):
            update = replace(update, end=RecurrentState(update.end.conv, update.end.delta[:, :1]))
        with (
            patch.object(recurrent, "_compact", fails),
            pytest.raises((AssertionError, torch.OutOfMemoryError)),
        ):
            seq.cache.put(update)

    @rule(target=snapshots, which=WHICH, back=BACK)
    def snapshot(self, which, back):
        seq = self.pair[which]
        start = max(0, len(seq.tokens) - back)
        taken = seq.cache.snapshot(start)
        assert (taken is None) == (not seq.tokens)
        if taken is None:
            return multiple()
        return self.hold(taken, min(start, len(seq.tokens)), seq.tokens)

    @precondition(lambda self: any(s.schedule is None for s in self.pair))
    @rule(which=WHICH, ahead=st.sets(st.integers(0, 12), max_size=5))
    def prepare(self, which, ahead):
        if self.pair[which].schedule is not None:
            which = 1 - which
        seq, now = self.pair[which], len(self.pair[which].tokens)
        seq.schedule = [now + o for o in sorted(ahead)]
        seq.captured, seq.base = {}, now
        seq.cache.prepare_snapshots(seq.schedule)
        seq.reach(now, now)

    @precondition(lambda self: any(s.schedule is not None for s in self.pair))
    @rule(target=snapshots, which=WHICH)
    def take(self, which):
        if self.pair[which].schedule is None:
            which = 1 - which
        seq = self.pair[which]
        held = []
        for offset, taken in zip(seq.schedule, seq.cache.take_snapshots(), strict=True):
            expected = seq.captured.get(offset)
            if expected is None or offset == 0:
                assert taken is None
            else:
                held.append(self.hold(taken, *expected))
        seq.schedule = None
        return multiple(*held)

    def hold(self, taken, start, tokens):
        assert (taken.start, taken.end) == (start, len(tokens))
        taken.set_materialize_hook(self.hear)
        held = Held(taken, list(tokens))
        self.open.append(held)
        return held

    def hear(self, _owned):
        raise AssertionError("a snapshot that owns its state from the start copies nothing out")

    @rule(which=WHICH, held=snapshots, back=BACK)
    def restore(self, which, held, back):
        seq, target = self.pair[which], len(held.tokens) - back
        assert seq.cache.restore(held.snapshot, target) == (back == 0)
        if back == 0:
            seq.tokens = list(held.tokens)

    @rule(which=WHICH, back=BACK)
    def rewind(self, which, back):
        cache = self.pair[which].cache
        assert cache.restore(None, cache.offset - back) == (back == 0)

    @rule(held=consumes(snapshots))
    def close(self, held):
        self.open.remove(held)
        held.snapshot.close()
        with pytest.raises(AssertionError, match="after close"):
            held.snapshot.size()

    @rule(target=snapshots, which=WHICH, held=consumes(snapshots), back=BACK)
    def split(self, which, held, back):
        at = len(held.tokens) - back
        assert self.pair[which].cache.split(held.snapshot, at) == (None, held.snapshot)
        return held

    @rule(target=snapshots, which=WHICH, parent=consumes(snapshots), child=consumes(snapshots))
    def merge(self, which, parent, child):
        cache = self.pair[which].cache
        assert cache.merge_frees(parent.snapshot, child.snapshot) == STATE_BYTES
        assert cache.merge(parent.snapshot, child.snapshot) is child.snapshot
        self.open.remove(parent)
        with pytest.raises(AssertionError):
            parent.snapshot.close()
        return child

    @rule(which=WHICH)
    def free(self, which):
        cache = self.pair[which].cache
        before = cache.generation
        cache.free()
        assert cache.generation > before
        assert cache.nbytes() == 0
        self.pair[which] = Sequence(cache)

    @invariant()
    def state_stands_for_the_tokens(self):
        for seq in self.pair:
            assert seq.cache.offset == len(seq.tokens)
            assert same(seq.cache.get(1, torch.float32), seq.tokens)

    @invariant()
    def live_tensors_stay_while_the_generation_does(self):
        for seq in self.pair:
            state = seq.cache.get(1, torch.float32)
            lives = (seq.cache.generation, state.conv.data_ptr(), state.delta.data_ptr())
            assert seq.lives in ((), lives) or seq.lives[0] < lives[0]
            seq.lives = lives

    @invariant()
    def a_snapshot_owns_its_state_and_no_more(self):
        assert all(held.snapshot.size() == STATE_BYTES for held in self.open)

    @invariant()
    def a_snapshot_stays_the_state_after_its_tokens(self):
        assert all(same(held.snapshot.state, held.tokens) for held in self.open)

    def teardown(self):
        for seq in self.pair:
            for snapshot in seq.cache.take_snapshots() if seq.schedule is not None else ():
                if snapshot is not None:
                    snapshot.close()
        for held in self.open:
            held.snapshot.close()


def test_a_recurrent_cache_is_the_fold_of_its_tokens():
    """REC-3, REC-4, REC-5, REC-6, REC-7, REC-8, PND-3, PND-8, CTR-5, CTR-8, ACC-1, ACC-3, WRT-2."""
    run_state_machine_as_test(
        RecurrentLaws, settings=settings(max_examples=80, stateful_step_count=30, deadline=None)
    )
