"""Drives recurrent caches through arbitrary calls: each holds the fold of its list of tokens.

A token is written with a state of our own making, in whole numbers that float32 holds exactly, so
that the model of a sequence is the list of its tokens and states are compared to the last bit. Two
caches run side by side, so that snapshots also go where they were not taken.

Rules: CTR-1, CTR-3, CTR-4, CTR-5, CTR-6, CTR-8, PND-3, PND-4, PND-5, PND-6, PND-7, PND-8, REC-2,
REC-3, REC-4, REC-5, REC-6, REC-7, REC-8, ACC-1, ACC-2, ACC-3.
"""

from dataclasses import dataclass, field
from unittest.mock import patch

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fixtures.token_folds import (
    SHAPE,
    STATE_BYTES,
    check_begun,
    fill,
    fold,
    perform,
    same,
)
from forerun.cache import recurrent
from forerun.cache.places import Place
from forerun.cache.recurrent import RecurrentCache
from forerun.cache.recurrent_snapshots import RecurrentSnapshot
from forerun.contract.model import WIDEST_ROUND
from forerun.contract.recurrence import RecurrentState, RecurrentUpdate

WHICH = st.integers(0, 1)
BACK = st.sampled_from([0, 0, 0, -1, 1, 3])
LONG = st.lists(st.integers(1, 9), min_size=1, max_size=21)  # past a round
STORED = st.sets(st.integers(0, 4), max_size=2)  # captures of a round
BEGUN = st.sampled_from([True, True, False])  # or put without more ado


def fails(*_):
    raise torch.OutOfMemoryError("no memory for a capture")


@dataclass
class Sequence:
    """What one cache should hold, and what is due of the schedule that it was given."""

    cache: RecurrentCache
    tokens: list[int] = field(default_factory=list)
    schedule: list[int] | None = None
    captured: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    base: int = 0
    lives: tuple[int, set[int]] = (0, set())  # generation, and addresses of states since then

    def reach(self, start, end):
        for offset in self.schedule or ():
            if start <= offset <= end and offset not in self.captured:
                self.captured[offset] = (self.base, self.tokens[:offset])
                self.base = offset

    def due(self, start, end):
        return [o for o in self.schedule or () if start <= o <= end and o not in self.captured]

    def saw(self, state):
        if self.lives[0] != self.cache.generation:
            self.lives = self.cache.generation, set()
        self.lives[1].add(state.delta.data_ptr())
        assert len(self.lives[1]) <= 1 + self.cache._replays


@dataclass(eq=False)
class Held:
    """A snapshot, the tokens that restoring it leaves, and the bytes that its holder knows of."""

    snapshot: RecurrentSnapshot
    tokens: list[int]
    counted: int = 0

    def hear(self, owned):
        assert self.counted == 0
        self.counted += owned


class RecurrentLaws(RuleBasedStateMachine):
    snapshots = Bundle("snapshots")

    def __init__(self):
        super().__init__()
        self.open = []

    @initialize(replays=st.sampled_from([(True, True), (True, False)]))
    def start(self, replays):
        self.pair = [Sequence(RecurrentCache(SHAPE, replay=replay)) for replay in replays]
        for seq in self.pair:
            seq.cache.get(1, torch.float32)

    @rule(which=WHICH, tokens=LONG, surplus=st.integers(0, 2), begun=BEGUN)
    def write(self, which, tokens, surplus, begun):
        """Padding is not counted, and a write that was begun ends with as many tokens as put."""
        seq = self.pair[which]
        seq.cache.put(self.made(seq, tokens, surplus if begun else None))
        start = len(seq.tokens)
        seq.tokens = seq.tokens + tokens
        seq.reach(start, len(seq.tokens))

    @rule(target=snapshots, which=WHICH, tokens=LONG, keep=st.integers(0, 20), stored=STORED)
    def round(self, which, tokens, keep, stored):
        """As speculation plays one: captures at every token, of which one leads back. Somebody may
        go on holding some of them.
        """
        seq, tokens = self.pair[which], tokens[:WIDEST_ROUND]
        if seq.schedule is not None or len(tokens) < 2:
            return multiple()
        now, keep = len(seq.tokens), 1 + keep % len(tokens)
        seq.cache.prepare_snapshots(range(now + 1, now + len(tokens)))
        seq.cache.put(self.made(seq, tokens, 0))
        captures = seq.cache.take_snapshots()
        if keep < len(tokens):
            assert seq.cache.restore(captures[keep - 1], now + keep)
            assert captures[keep - 1].size() == (0 if seq.cache._replays else STATE_BYTES)
        held = []
        for place, capture in enumerate(captures):
            if place in stored:
                held.append(self.hold(capture, now + place, seq.tokens + tokens[: place + 1]))
            else:
                capture.close()
        seq.tokens = seq.tokens + tokens[:keep]
        return multiple(*held)

    def made(self, seq, tokens, surplus):
        """surplus  columns of padding; None: no write is begun."""
        before, start = seq.tokens, len(seq.tokens)
        if surplus is not None:
            splits = seq.cache.snapshot_splits(len(tokens) + surplus)
            write = seq.cache.begin_write(len(tokens) + surplus)
            assert write.splits == tuple(splits)
            rounds = bool(splits) and len(tokens) + surplus <= WIDEST_ROUND
            assert (write.update.inputs is not None) == (rounds and seq.cache._replays)
            seq.saw(write.before)
            perform(write, before, tokens + [0] * surplus)
            if write.update.end is not None:
                fill(write.update.end, before + tokens)
            return write.update.of(len(tokens))
        seq.cache.get(1, torch.float32)
        splits = seq.cache.snapshot_splits(len(tokens))
        assert splits == [o - start for o in seq.due(start + 1, start + len(tokens) - 1)]
        states = [fold(before + tokens[:split]) for split in splits]
        return RecurrentUpdate(fold(before + tokens), (len(tokens),), tuple(states))

    @rule(which=WHICH, tokens=st.integers(0, 20), folds=st.booleans())
    def abandon(self, which, tokens, folds):
        """A put of no tokens undoes what was begun, whatever was filled meanwhile."""
        seq = self.pair[which]
        write = seq.cache.begin_write(tokens)
        check_begun(write, seq.tokens)
        if folds and write.folded is not None:
            write.folded.copy_(fold(seq.tokens).delta)
        seq.cache.put(write.update.of(0))
        seq.reach(len(seq.tokens), len(seq.tokens))

    @rule(which=WHICH, tokens=LONG, begun=st.booleans())
    def refuse(self, which, tokens, begun):
        """What is too long, or of another shape, has not been put, and the write has ended."""
        seq = self.pair[which]
        update = self.made(seq, tokens, 0 if begun else None)
        if begun:
            update = update.of(len(tokens) + 1)
        else:
            short = RecurrentState(update.end.conv, update.end.delta[:, :1])
            update = RecurrentUpdate(short, update.lengths, update.splits)
        with pytest.raises(AssertionError):
            seq.cache.put(update)

    @rule(which=WHICH, tokens=LONG, begun=BEGUN)
    def fail(self, which, tokens, begun):
        """A write that has no memory for what it must copy is as if nobody had tried it."""
        seq = self.pair[which]
        seq.cache.get(1, torch.float32)
        start = len(seq.tokens)
        try:
            with patch.object(recurrent, "compact", fails), patch.object(Place, "folded", fails):
                seq.cache.put(self.made(seq, tokens, 0 if begun else None))
        except torch.OutOfMemoryError:
            return
        seq.tokens = seq.tokens + tokens
        seq.reach(start, len(seq.tokens))

    @rule(which=WHICH)
    def get(self, which):
        seq = self.pair[which]
        state = seq.cache.get(1, torch.float32)
        assert same(state, seq.tokens)
        seq.saw(state)

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
        held = Held(taken, list(tokens), taken.size())
        taken.set_materialize_hook(held.hear)
        self.open.append(held)
        return held

    @rule(which=WHICH, held=snapshots, back=BACK)
    def restore(self, which, held, back):
        """Which owns nothing that was lazy, in the cache that took it or in another one."""
        seq, target, lazy = self.pair[which], len(held.tokens) - back, held.snapshot.lazy
        assert seq.cache.restore(held.snapshot, target) == (back == 0)
        assert held.snapshot.lazy is lazy
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
        assert cache.merge_frees(parent.snapshot, child.snapshot) == parent.counted
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
        assert not cache._lazy._open
        cache.get(1, torch.float32)
        self.pair[which] = Sequence(cache)

    @invariant()
    def state_stands_for_the_tokens(self):
        """Told by a snapshot, which folds nothing in."""
        for seq in self.pair:
            assert seq.cache.offset == len(seq.tokens)
            taken = seq.cache.snapshot(0)
            assert same(taken.state, seq.tokens) if taken else not seq.tokens

    @invariant()
    def a_snapshot_owns_its_state_or_nothing(self):
        for held in self.open:
            snapshot = held.snapshot
            assert snapshot.size() == held.counted
            assert (snapshot.size(), snapshot.lazy_bytes()) == (
                (STATE_BYTES, 0) if snapshot.lazy is None else (0, STATE_BYTES)
            )

    @invariant()
    def a_snapshot_stays_the_state_after_its_tokens(self):
        assert all(same(held.snapshot.state, held.tokens) for held in self.open)

    def teardown(self):
        for seq in getattr(self, "pair", ()):
            for snapshot in seq.cache.take_snapshots() if seq.schedule is not None else ():
                if snapshot is not None:
                    snapshot.close()
        for held in self.open:
            held.snapshot.close()
        for seq in getattr(self, "pair", ()):
            assert not seq.cache._lazy._open


def test_a_recurrent_cache_is_the_fold_of_its_tokens():
    """REC-3, REC-4, REC-5, REC-6, REC-7, REC-8, PND-3, PND-8, CTR-5, CTR-8, ACC-1, ACC-2, ACC-3,
    REW-2, WRT-2.
    """
    run_state_machine_as_test(
        RecurrentLaws, settings=settings(max_examples=120, stateful_step_count=30, deadline=None)
    )
