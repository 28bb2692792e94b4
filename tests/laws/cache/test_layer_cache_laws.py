"""Drives both attention caches through arbitrary calls, against the plainest model of one.

The model of a sequence is the list of its tokens, and that of a snapshot is the list of the tokens
that restoring it leaves. Two caches of one kind run side by side, so that snapshots also go
where they were not taken. Sizes are tiny, so that rewinds, overwrites and wraps meet often.

Rules: CTR-1, CTR-3, CTR-4, CTR-5, CTR-6, WRT-1, WRT-2, WRT-4, KV-3, KV-5, KV-6, KV-7, KV-10, KV-11,
KV-12, KV-13, ROT-2, ROT-3, ROT-6, ROT-13, ROT-14, ROT-15, ROT-16, ROT-19, PND-3, PND-5, PND-6,
ACC-1, ACC-2, ACC-3, R9, R15.
"""

from dataclasses import dataclass, field

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

from forerun.cache.kv import KVCache
from forerun.cache.rotating import RotatingCache
from forerun.cache.rows import RowShape

SHAPE = RowShape(1, 1, 1, torch.float32, torch.device("cpu"))
CONTEXT, WINDOW, SLACK = 300, 4, 3
TOKENS = st.lists(st.integers(1, 9), min_size=1, max_size=5)
LONG = st.lists(st.integers(1, 9), min_size=1, max_size=16)  # longer than the slack too
BACK = st.integers(-1, 7)
WHICH = st.integers(0, 1)


@dataclass
class Sequence:
    """What one cache should hold, and what is due of the schedule that it was given."""

    cache: object
    tokens: list[int] = field(default_factory=list)
    dropped: bool = False  # whether the cache may have let go of a row
    since: int = 0  # it holds the rows of every state from here on
    head: int = 0  # highest offset since then
    schedule: list[int] | None = None
    captured: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    base: int = 0

    def reach(self, start: int, end: int) -> None:
        for offset in self.schedule or ():
            if start <= offset <= end and offset not in self.captured:
                self.captured[offset] = (self.base, self.tokens[:offset])
                self.base = offset


@dataclass
class Held:
    """A snapshot and the tokens of the sequence that it was taken of, up to its end."""

    snapshot: object
    tokens: list[int]


class CacheLaws(RuleBasedStateMachine):
    """What holds of every kind; the kinds say where they differ."""

    snapshots = Bundle("snapshots")

    def __init__(self) -> None:
        super().__init__()
        self.pair = [Sequence(self.make()), Sequence(self.make())]
        self.open: list[object] = []
        self.heard = 0  # bytes that copy-outs reported, of snapshots still open

    def room(self) -> bool:
        return max(len(s.tokens) for s in self.pair) < CONTEXT - 20

    @precondition(room)
    @rule(which=WHICH, tokens=LONG, surplus=st.integers(0, 3))
    def write(self, which, tokens, surplus):
        """`end_write` of fewer rows than announced leaves what writing just those leaves."""
        seq = self.pair[which]
        write = seq.cache.begin_write(len(tokens) + surplus)
        self.began(seq, len(tokens) + surplus)
        rows = torch.tensor(tokens, dtype=torch.float32).view(1, 1, -1, 1)
        padding = torch.full((1, 1, surplus, 1), float("nan"))
        write.store(torch.cat((rows, padding), 2), torch.cat((-rows, padding), 2))
        self.sees(seq, write.history, tokens, surplus)
        end = write.first_index + len(tokens) + surplus
        seen = write.keys[:, :, end - write.history.live : end]
        assert seen.data_ptr() == write.history.keys.data_ptr()
        seq.cache.end_write(len(tokens))
        self.ended(seq, tokens)

    @precondition(room)
    @rule(which=WHICH, tokens=TOKENS)
    def update(self, which, tokens):
        seq = self.pair[which]
        rows = torch.tensor(tokens, dtype=torch.float32).view(1, 1, -1, 1)
        history = seq.cache.update(rows, -rows)
        self.began(seq, len(tokens))
        self.sees(seq, history, tokens, 0)
        self.ended(seq, tokens)

    @precondition(room)
    @rule(which=WHICH, tokens=st.integers(0, 16))
    def abandon(self, which, tokens):
        seq = self.pair[which]
        write = seq.cache.begin_write(tokens)
        self.began(seq, tokens)
        poison = torch.full((1, 1, tokens, 1), float("nan"))
        write.store(poison, poison)
        seq.cache.end_write(0)

    @rule(target=snapshots, which=WHICH, back=BACK)
    def snapshot(self, which, back):
        seq = self.pair[which]
        start = max(0, len(seq.tokens) - back)
        taken = seq.cache.snapshot(start)
        assert (taken is None) == (start >= len(seq.tokens))
        return multiple() if taken is None else self.hold(taken, start, seq.tokens)

    @precondition(lambda self: any(s.schedule is None for s in self.pair))
    @rule(which=WHICH, ahead=st.sets(st.integers(0, 12), max_size=5))
    def prepare(self, which, ahead):
        if self.pair[which].schedule is not None:
            which = 1 - which
        seq, now = self.pair[which], len(self.pair[which].tokens)
        offsets = [now + o for o in sorted(ahead)]
        seq.cache.prepare_snapshots(offsets)
        seq.schedule, seq.captured, seq.base = offsets, {}, now
        seq.reach(now, now)

    @precondition(lambda self: any(s.schedule is not None for s in self.pair))
    @rule(target=snapshots, which=WHICH)
    def take(self, which):
        if self.pair[which].schedule is None:
            which = 1 - which
        seq = self.pair[which]
        taken = seq.cache.take_snapshots()
        held = []
        for offset, snapshot in zip(seq.schedule, taken, strict=True):
            expected = seq.captured.get(offset)
            if expected is None or self.spans_nothing(expected[0], offset):
                assert snapshot is None
            else:
                held.append(self.hold(snapshot, *expected))
        seq.schedule = None
        return multiple(*held)

    def hold(self, taken, start, tokens):
        assert (taken.start, taken.end) == (start, len(tokens))
        assert taken.size() in (0, self.owned_bytes(taken))
        self.attach(taken)
        return Held(taken, list(tokens))

    def attach(self, snapshot):
        self.heard += snapshot.size()
        snapshot.set_materialize_hook(self.hear)
        self.open.append(snapshot)

    def detach(self, snapshot):
        snapshot.set_materialize_hook(None)
        self.heard -= snapshot.size()
        self.open.remove(snapshot)

    def closed(self, snapshot):
        try:
            snapshot.look()
        except AssertionError:
            return True
        return False

    def hear(self, owned):
        self.heard += owned

    @rule(which=WHICH, held=snapshots, back=BACK)
    def restore(self, which, held, back):
        seq, target = self.pair[which], len(held.tokens) - back
        if self.restores(seq, held, target):
            assert seq.cache.restore(held.snapshot, target)
            self.restored(seq, held, target)
        else:
            assert not seq.cache.restore(held.snapshot, target)

    @rule(which=WHICH, back=BACK)
    def rewind(self, which, back):
        seq, target = self.pair[which], len(self.pair[which].tokens) - back
        done = seq.cache.restore(None, target)
        assert not done or 0 <= target <= len(seq.tokens)
        assert done or not self.must_rewind(seq, target)
        if done:
            del seq.tokens[target:]

    @rule(held=consumes(snapshots))
    def close(self, held):
        self.detach(held.snapshot)
        held.snapshot.close()

    @rule(target=snapshots, which=WHICH, held=consumes(snapshots), back=BACK)
    def split(self, which, held, back):
        """Parts restore what the whole did. A cache takes another's snapshots too."""
        self.detach(held.snapshot)
        at = len(held.tokens) - back
        parts = self.pair[which].cache.split(held.snapshot, at)
        expected = self.cut(held, at)
        assert self.closed(held.snapshot) == (held.snapshot not in parts)
        assert [p is None for p in parts] == [e is None for e in expected]
        return multiple(
            *[
                self.hold(part, *e)
                for part, e in zip(parts, expected, strict=True)
                if part is not None
            ]
        )

    @rule(target=snapshots, which=WHICH, held=consumes(snapshots), back=st.integers(1, 7))
    def split_and_merge(self, which, held, back):
        start = held.snapshot.start
        self.detach(held.snapshot)
        cache = self.pair[which].cache
        parts = cache.split(held.snapshot, len(held.tokens) - back)
        if None in parts:
            whole = parts[0] or parts[1]
        else:
            for part in parts:
                self.attach(part)
                self.detach(part)
            whole = cache.merge(*parts)
            assert all(self.closed(part) for part in parts if part is not whole)
        return self.hold(whole, start, held.tokens)

    @rule(which=WHICH)
    def free(self, which):
        seq = self.pair[which]
        seq.cache.free()
        self.pair[which] = Sequence(seq.cache)

    @invariant()
    def state_stands_for_the_tokens(self):
        for seq in self.pair:
            assert seq.cache.offset == len(seq.tokens)
            history = seq.cache.view()
            expected = self.state(seq.tokens)
            assert history.live == len(expected)
            assert history.oldest == len(seq.tokens) - len(expected)
            assert history.keys[..., : history.live, :].flatten().tolist() == expected
            assert history.values[..., : history.live, :].flatten().tolist() == [
                -token for token in expected
            ]

    @invariant()
    def every_owned_byte_was_reported_once(self):
        assert self.heard == sum(s.size() for s in self.open)
        assert all(s.size() in (0, self.owned_bytes(s)) for s in self.open)

    def teardown(self):
        for seq in self.pair:
            for snapshot in seq.cache.take_snapshots() if seq.schedule is not None else ():
                if snapshot is not None:
                    snapshot.close()
        for snapshot in list(self.open):
            self.detach(snapshot)
            snapshot.close()
        assert self.heard == 0

    def began(self, seq, announced):
        seq.dropped |= len(seq.tokens) + announced > WINDOW + 2 * SLACK
        seq.head = max(seq.head, len(seq.tokens))
        seq.reach(len(seq.tokens), len(seq.tokens))

    def ended(self, seq, tokens):
        start = len(seq.tokens)
        seq.tokens += tokens
        seq.head = max(seq.head, len(seq.tokens))
        seq.reach(start, len(seq.tokens))

    def sees(self, seq, history, tokens, surplus):
        """The new rows come last, after all that the first of them may see."""
        before = self.state_before_next(seq.tokens)
        assert history.live == len(before) + len(tokens) + surplus
        assert history.oldest == len(seq.tokens) - len(before)
        seen = history.keys[..., : history.live - surplus, :].flatten().tolist()
        assert seen == [*before, *tokens]


class KVLaws(CacheLaws):
    def make(self):
        return KVCache(SHAPE, CONTEXT)

    def state(self, tokens):
        return tokens

    def state_before_next(self, tokens):
        return tokens

    def spans_nothing(self, base, offset):
        return base == offset

    def owned_bytes(self, snapshot):
        return (snapshot.end - snapshot.start) * SHAPE.row_bytes

    def restores(self, seq, held, target):
        return 0 <= target <= held.snapshot.end and held.snapshot.start <= len(seq.tokens)

    def restored(self, seq, held, target):
        start = held.snapshot.start
        seq.tokens = (seq.tokens[:start] + held.tokens[start:])[:target]

    def must_rewind(self, seq, target):
        return 0 <= target <= len(seq.tokens)

    def cut(self, held, at):
        start, end = held.snapshot.start, len(held.tokens)
        before = (start, held.tokens[: min(at, end)]) if at > start else None
        after = (max(at, start), held.tokens) if at < end else None
        return before, after


class GrowingKVLaws(KVLaws):
    def make(self):
        return KVCache(SHAPE, CONTEXT, reserve=False, smallest_class=4)


class RotatingLaws(CacheLaws):
    def make(self):
        return RotatingCache(SHAPE, WINDOW, SLACK)

    def state(self, tokens):
        return tokens[-WINDOW:]

    def state_before_next(self, tokens):
        return tokens[max(0, len(tokens) - WINDOW + 1) :]

    def spans_nothing(self, _base, offset):
        return offset == 0

    def owned_bytes(self, snapshot):
        return min(snapshot.end, WINDOW) * SHAPE.row_bytes

    def restores(self, _seq, held, target):
        end = held.snapshot.end
        return target == end or (0 <= target <= end <= WINDOW)

    def restored(self, seq, held, target):
        seq.tokens = held.tokens[:target]
        seq.dropped = len(held.tokens) > WINDOW
        seq.since = len(held.tokens) if seq.dropped else 0
        seq.head = len(held.tokens)

    def must_rewind(self, seq, target):
        # two rewinds in a row add up: no buffer of this size could hold more
        kept = seq.head - target <= SLACK or not seq.dropped
        return 0 <= target <= len(seq.tokens) and kept and seq.since <= target

    def cut(self, held, _at):
        return None, (held.snapshot.start, held.tokens)


@pytest.mark.parametrize(
    ("laws", "examples"),
    [(KVLaws, 60), (GrowingKVLaws, 30), (RotatingLaws, 120)],
    ids=["kv", "growing", "rotating"],
)
def test_a_cache_is_its_list_of_tokens(laws, examples):
    """CTR-1, KV-5, ROT-2, ROT-6, ROT-14, ROT-15, WRT-2, PND-3, ACC-1, ACC-2, R9, R15."""
    run_state_machine_as_test(
        laws, settings=settings(max_examples=examples, stateful_step_count=30, deadline=None)
    )
