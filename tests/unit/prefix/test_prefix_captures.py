"""What a prefill captures and how that is stored, cancelled or not: 02 SCH, ATT, CAN."""

import pytest

from fixtures.checked_rig import CASES, NEVER, STUBBORN, CheckedRig, each
from fixtures.layer_kinds import Rig
from forerun.base.errors import CancelledError
from forerun.prefix.captures import CaptureRule, PendingCapture, planned
from forerun.prefix.keys import MediaRange

PROMPT = list(range(100, 147))
RULE = CaptureRule(interval=8, before_end=4)


def plan(tokens, cached=0, branch=0, look_ahead=0, media=()):
    found = planned(
        RULE, tokens=tokens, cached=cached, branch=branch, look_ahead=look_ahead, media=media
    )
    return {capture.offset: capture.user for capture in found}


def test_strides_and_four_tokens_before_the_end_are_captured():
    """02 SCH-1: so that a retry with another end, as without thinking, reuses nearly all of it."""
    assert CaptureRule() == CaptureRule(interval=8192, before_end=4)
    assert CaptureRule().offsets(20_000) == [8192, 16_384, 19_996]
    assert list(plan(25)) == [8, 16, 21, 24]
    assert list(plan(24)) == [8, 16, 20]  # below n, not at it
    assert list(plan(5)) == [1]
    assert RULE.offsets(4) == RULE.offsets(1) == []


def test_an_offset_is_lowered_by_the_look_ahead_and_left_out_if_it_is_held_already():
    """02 SCH-2."""
    assert list(plan(25, look_ahead=1)) == [7, 15, 20, 23]
    assert list(plan(25, cached=16)) == [21, 24]
    assert list(plan(25, cached=15, look_ahead=1)) == [20, 23]
    assert plan(5, look_ahead=1) == {}  # 0 is never worth a capture
    unended = MediaRange(20, 30, 1 << 31, causal=False)
    assert list(plan(25, media=[unended])) == [8, 16]  # 21 and 24 would move beyond the prompt


def test_an_offset_inside_an_item_that_cannot_be_cut_moves_to_its_end():
    """02 SCH-3, MED-2: a causal item may be cut."""
    block = MediaRange(6, 12, 1 << 31, causal=False)
    assert list(plan(25, media=[block])) == [12, 16, 21, 24]
    assert list(plan(25, look_ahead=1, media=[block])) == [12, 15, 20, 23]
    causal = MediaRange(6, 12, 1 << 31, causal=True)
    assert list(plan(25, media=[causal])) == [8, 16, 21, 24]
    ends = [MediaRange(8, 12, 1 << 31, causal=False), MediaRange(4, 8, 1 << 31, causal=False)]
    assert list(plan(25, media=ends)) == [8, 16, 21, 24]  # a border is not inside


def test_captures_that_fall_together_are_one_and_user():
    """02 SCH-4: sorted, unique, and what was asked for stays marked as that."""
    assert plan(25, branch=10) == {8: True, 10: False, 16: True, 21: True, 24: True}
    assert list(plan(25, branch=10)) == [8, 10, 16, 21, 24]
    assert plan(25, branch=16)[16] is True
    block = MediaRange(7, 18, 1 << 31, causal=False)
    assert plan(25, media=[block]) == {18: True, 21: True, 24: True}  # 8 and 16 moved together
    assert plan(25, branch=18, media=[block])[18] is True


def watched(rig):
    """Every schedule that any cache is given."""
    seen = []
    for cache in rig.caches:
        inner = cache.prepare_snapshots
        cache.prepare_snapshots = lambda offsets, inner=inner: (
            seen.append(list(offsets)),
            inner(offsets),
        )
    return seen


@each(CASES)
def test_all_caches_get_one_schedule(layout, look_ahead):
    """02 SCH-5: targets and draft the same, in one call before prefill; none at all when empty."""
    rig = Rig(layout, look_ahead)
    seen = watched(rig)
    with rig.prefix.begin(PROMPT) as session:
        offsets = [capture.offset for capture in session.pending]
        assert seen == [offsets] * len(rig.caches)
    seen.clear()
    with rig.prefix.begin(PROMPT[:4]) as session:
        assert session.pending == ()
    assert seen == []


@each(CASES)
@pytest.mark.parametrize("chunk", [1, 3, 9, 512])
def test_captures_are_taken_inside_whatever_writes_cross_them(layout, look_ahead, chunk):
    """02 SCH-6, PRE-2: chunks are not cut for them, and each can be resumed from (`check`)."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, chunk=chunk)
    assert rig.ends == [*(offset - look_ahead for offset in (8, 16, 24, 32, 40, 43)), 46]
    if layout != "kv":
        assert all(fact.complete for fact in rig.prefix.nodes()[1:])


@each(CASES)
def test_attaching_again_changes_nothing(layout, look_ahead):
    """ATT-1: once after prefill, and at the close what was not attached by then."""
    rig = CheckedRig(layout, look_ahead)
    with rig.prefix.begin(PROMPT) as session:
        rig.forward(PROMPT[:46])
        rig.settle(PROMPT)
        session.attach()
        before = rig.ends
        assert before == [offset - look_ahead for offset in (8, 16, 24, 32, 40, 43)]
        assert session.pending == ()
        session.attach()
        assert rig.ends == before
    assert rig.ends == [*before, 46]
    rig.check()


@each(CASES)
def test_a_cancelled_prefill_stores_what_it_crossed(layout, look_ahead):
    """ATT-1, CAN-3: else a client with a short patience would retry from zero for ever."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, chunk=9, cancel_after=3)
    assert rig.ends == [*(offset - look_ahead for offset in (8, 16, 24)), 27]
    assert [node.user for node in rig.nodes] == [True, True, True, False]


@each(CASES)
@pytest.mark.parametrize("error", [CancelledError, ZeroDivisionError])
def test_every_cache_is_drained_in_every_outcome(layout, look_ahead, error):
    """ATT-2, CLO-1: a schedule left behind would refuse the next one."""
    rig = CheckedRig(layout, look_ahead)
    with pytest.raises(error), rig.prefix.begin(PROMPT):
        rig.forward(PROMPT[:20])
        rig.settle(PROMPT[:21])
        raise error("stop")
    rig.check_drained()
    assert rig.prefix.pending == ()
    assert rig.run(PROMPT).cached == (20 if error is CancelledError else 0)


@each(STUBBORN)
def test_a_capture_that_some_layer_did_not_reach_is_closed(layout, look_ahead):
    """ATT-3: the target was evaluated to 9, one layer only to 7."""
    rig = CheckedRig(layout, look_ahead)
    lagging = next(target for target in rig.targets if target.cache is not None)
    with rig.prefix.begin(PROMPT) as session:
        rig.forward(PROMPT[:5])
        for target in rig.targets:
            if target is not lagging:
                target.feed(PROMPT[5:9])
        rig.settle(PROMPT[:10])
        session.attach()
        assert rig.ends == []
        lagging.feed(PROMPT[5:9])
    rig.check()


def test_a_draft_that_was_not_settled_holds_back_the_last_capture():
    """ATT-3: its rows end one short of the target's, so the order of PRE-6 matters."""
    rig = CheckedRig("hybrid", 1, captures=CaptureRule(interval=8, before_end=1 << 20))
    with rig.prefix.begin(PROMPT[:17]) as session:
        assert [capture.offset for capture in session.pending] == [7, 15]
        for target in rig.targets:
            target.feed(PROMPT[:15])
        rig.settle(PROMPT[:15])  # the pair of the fifteenth token is open
        session.attach()
        assert rig.ends == [7]
        rig.settle(PROMPT[:16])
    rig.check()


@each(STUBBORN)
def test_each_capture_gets_a_node_at_its_offset(layout, look_ahead):
    """ATT-4: user where it was asked for, and not where only a match ended."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 210))
    rig.run([*PROMPT[:21], *range(300, 325)], chunk=5)
    branch, *rest = rig.prefix.path[-6:]
    assert (branch.end, branch.user) == (21 - look_ahead, False)
    assert [(node.end + look_ahead, node.user) for node in rest[:-1]] == [
        (24, True),
        (32, True),
        (40, True),
        (42, True),
    ]


@each(STUBBORN)
def test_a_node_keeps_the_rows_that_it_has_and_takes_the_state_that_it_lacks(layout, look_ahead):
    """ATT-5: the capture reaches back before the node, to where the prefill resumed."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 210))
    story = [*PROMPT, *range(200, 210)]
    probe = rig.run([*story[:50], 1, 2, 3, 4, 5, 6])
    assert probe.cached == 43 - look_ahead
    again = rig.run([*story[:50], 7, 8])
    assert again.matched == again.cached == 50 - look_ahead


@each(CASES)
def test_an_attached_node_was_used_now(layout, look_ahead):
    """ATT-6."""
    now = [0.0]
    rig = Rig(layout, look_ahead, clock=lambda: now[0])
    with rig.prefix.begin(PROMPT) as session:
        rig.forward(PROMPT[:46])
        rig.settle(PROMPT)
        now[0] = 5.0
        session.attach()
        assert rig.prefix.path[-1].last_used == 5.0
        assert [fact.age_s for fact in rig.prefix.nodes() if fact.frontier] == [0.0]


@each(STUBBORN)
def test_the_budget_holds_when_all_is_attached(layout, look_ahead):
    """ATT-7, EVI-6: at 8, 16 and 24 states were captured, and the budget holds one of them."""
    rig = CheckedRig(layout, look_ahead)
    with rig.prefix.begin(PROMPT) as session:
        rig.forward(PROMPT[:46])
        rig.settle(PROMPT)
        rig.prefix.set_budget(100)
        session.attach()
        assert rig.prefix.snapshot_bytes <= 100
        assert len(rig.prefix.nodes()) < 6
        assert rig.prefix.path[-1].end == 43 - look_ahead
    rig.check()


@each(CASES)
def test_a_cancelled_prefill_leaves_all_layers_level(layout, look_ahead):
    """CAN-1, PRE-5: the draft's last pair is made with the prompt token that follows."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, chunk=9, cancel_after=2)
    assert rig.offset == rig.prefix.path[-1].end == 18
    rig.check_holds(PROMPT[: 18 + look_ahead])
    assert rig.found(PROMPT) == 18


@each(CASES)
def test_a_retry_resumes_exactly_where_the_attempt_stopped_five_times_in_a_row(layout, look_ahead):
    """CAN-2: cached equals what was evaluated."""
    rig = CheckedRig(layout, look_ahead)
    for attempt in range(5):
        found = rig.run(PROMPT, chunk=7, cancel_after=1)
        assert found.cached == 7 * attempt
    assert rig.run(PROMPT).cached == 35


@each(CASES)
def test_a_request_cancelled_before_its_first_chunk_changes_nothing(layout, look_ahead):
    """CAN-3: there is nothing to record."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT, chunk=9, cancel_after=0)
    assert rig.nodes == []
    rig.run(PROMPT, [200, 201])
    rig.run([*PROMPT, 200, 201, 5, 6], cancel_after=0)
    assert rig.ends == [48]


def test_pending_captures_are_told_in_order():
    """02 SCH-4."""
    rig = Rig("hybrid", 1)
    with rig.prefix.begin(PROMPT[:20]) as session:
        assert session.pending == (
            PendingCapture(7, user=True),
            PendingCapture(15, user=True),
        )
