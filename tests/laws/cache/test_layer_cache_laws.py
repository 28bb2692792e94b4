"""Drives both attention caches through arbitrary calls, against the plainest model of one.

What is in them is told by `fixtures/row_cache_machine.py`; here stands where the kinds differ.

Rules: CTR-1, CTR-3, CTR-4, CTR-5, CTR-6, WRT-1, WRT-2, WRT-4, KV-3, KV-5, KV-6, KV-7, KV-10,
KV-11, KV-12, KV-13, KV-14, ROT-2, ROT-3, ROT-6, ROT-13, ROT-14, ROT-15, ROT-16, ROT-19, PND-3,
PND-5, PND-6, ACC-1, ACC-2, ACC-3, EVI-4, EVI-9, R9, R15.
"""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from fixtures.row_cache_machine import CONTEXT, SHAPE, CacheLaws
from forerun.cache.kv import KVCache
from forerun.cache.rotating import RotatingCache

WINDOW, SLACK = 4, 3


class KVLaws(CacheLaws):
    def make(self):
        return KVCache(SHAPE, CONTEXT)

    def capacity(self):
        return CONTEXT

    def state(self, tokens):
        return tokens

    def state_before_next(self, tokens):
        return tokens

    def spans_nothing(self, base, offset):
        return base == offset

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

    def meets(self, parent, child):
        return parent.snapshot.end == child.snapshot.start

    def joins(self, parent, child):
        return parent.snapshot.start, parent.tokens + child.tokens[child.snapshot.start :]


class GrowingKVLaws(KVLaws):
    def make(self):
        return KVCache(SHAPE, CONTEXT, reserve=False, smallest_class=4)


class RotatingLaws(CacheLaws):
    def make(self):
        return RotatingCache(SHAPE, WINDOW, SLACK)

    def capacity(self):
        return WINDOW + 2 * SLACK

    def state(self, tokens):
        return tokens[-WINDOW:]

    def state_before_next(self, tokens):
        return tokens[max(0, len(tokens) - WINDOW + 1) :]

    def spans_nothing(self, _base, offset):
        return offset == 0

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

    def meets(self, _parent, _child):
        return True

    def joins(self, _parent, child):
        return child.snapshot.start, child.tokens


@pytest.mark.parametrize(
    ("laws", "examples"),
    [(KVLaws, 100), (GrowingKVLaws, 60), (RotatingLaws, 100)],
    ids=["kv", "growing", "rotating"],
)
def test_a_cache_is_its_list_of_tokens(laws, examples):
    """R9, CTR-1, KV-5, ROT-2, ROT-6, ROT-14, ROT-15, WRT-2, PND-3, ACC-1, ACC-2, R15."""
    run_state_machine_as_test(
        laws, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None)
    )
