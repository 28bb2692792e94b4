"""The regression scenarios of spec 02 about where a request starts and what it leaves behind.

Every request goes through a rig that compares what each layer holds with the tokens fed to it, and
looks at the whole trie afterwards: structure, coverage, accounting, leaks.
"""

import pytest

from fixtures.checked_rig import ALL, CASES, NEVER, REWINDING, STUBBORN, CheckedRig, each
from forerun.prefix.captures import PendingCapture

HYBRID = each([("hybrid", 1), ("hybrid stateless", 1)])
PROMPT = list(range(100, 147))  # 47 tokens
INTERVAL, BEFORE_END, LOOK_AHEAD = 8, 4, 1  # of the hybrid cases


@HYBRID
def test_scenario_01_a_cancelled_prefill_is_resumed_where_it_stopped(layout, look_ahead):
    """02 scenario 1: CAN-1, CAN-2; a probe that leaves it resumes from the last capture."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, chunk=9, cancel_after=2)
    probe = rig.run([*PROMPT[:18], 1, 2, 3, 4])
    assert (probe.matched, probe.cached) == (17, 15)
    retry = rig.run(PROMPT, chunk=9, cancel_after=2)
    assert (retry.matched, retry.cached) == (18, 18)
    again = rig.run(PROMPT)
    assert (again.matched, again.cached) == (36, 36)
    rig.check_released()


@HYBRID
def test_scenario_02_ten_turns_that_keep_all_or_some_of_the_reply_before(layout, look_ahead):
    """02 scenario 2: what is kept whole costs nothing; what is not, no more than a stride."""
    rig = CheckedRig(layout, look_ahead)
    keeps = [None, 6, 2, 6, 0, 6, 6, 4, 6, 5]  # tokens of the reply before that the client sends
    sent, reply = [], []
    for turn, keep in enumerate(keeps):
        if turn == 5:
            rig.run(range(900, 930), range(930, 936))
        kept = reply[:keep] if keep is not None else []
        sent = [*sent, *kept, *range(1000 * turn + 1, 1000 * turn + 10)]
        found = rig.run(sent, fresh := list(range(1000 * turn + 500, 1000 * turn + 506)))
        if keep == len(reply):
            assert found.cached == found.matched == len(sent) - 10, turn
        elif turn:
            dropped = len(reply) - len(kept)
            bound = INTERVAL + BEFORE_END + LOOK_AHEAD + len(reply) + dropped
            assert found.matched - found.cached <= bound, turn
            assert found.cached >= len(sent) - len(kept) - 9 - bound, turn
        reply = fresh
    rig.check_released()


@HYBRID
@pytest.mark.parametrize("chunk", [2, 9], ids=["below the capture", "above it"])
def test_scenario_03_divergent_cancels_cost_the_conversation_nothing(layout, look_ahead, chunk):
    """02 scenario 3: wherever a probe leaves the conversation, and wherever it is cancelled."""
    rig = CheckedRig(layout, look_ahead)
    reply = list(range(200, 206))
    rig.run(PROMPT, reply, chunk=9)
    for shared in (3, 12, 20, 33, 44, 49):
        story = [*PROMPT, *reply][:shared]
        probe = rig.run([*story, *range(300, 330)], chunk=chunk, cancel_after=1)
        assert probe.matched == shared - 1
        assert probe.matched - probe.cached <= INTERVAL + BEFORE_END + LOOK_AHEAD + len(reply)
    whole = rig.run([*PROMPT, *reply, 1, 2, 3])
    assert whole.matched == whole.cached == len(PROMPT) + len(reply) - 1
    rig.check_released()


STORY = [1, 2, 3, 4, 5, 6, 7, 8]


@each(ALL)
def test_scenario_04_a_second_and_a_third_prompt_share_the_first(layout, look_ahead):
    """02 scenario 4: layers that all rewind start at the difference; with others a capture is
    pending there, and the third prompt starts from it.
    """
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(STORY, [20, 21])
    assert rig.offset == 9
    assert rig.found([*STORY, 20, 21]) == 9
    second = rig.run([1, 2, 3, 4, 5, 10, 11, 12])
    assert second.matched == 5 - look_ahead
    if rig.rewinds:
        assert second.remaining == 3 + look_ahead
        assert second.pending == ()
    else:
        assert second.remaining == 8
        assert second.pending == (PendingCapture(5 - look_ahead, user=False),)
    assert rig.found([*STORY, 20, 21]) >= 5
    assert rig.run([*STORY, 40, 41]).remaining < 10
    rig.check_released()


@each(ALL)
def test_scenario_05_an_exact_repeat(layout, look_ahead):
    """02 scenario 5: one token remains where all layers rewind; else all, and one capture."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(STORY[:5], [20, 21, 22, 23])
    repeat = rig.run(STORY[:5])
    assert repeat.matched == 5 - look_ahead
    assert repeat.remaining == (1 if rig.rewinds else 5)
    assert repeat.pending == (() if rig.rewinds else (PendingCapture(4, user=False),))
    rig.check_released()


@each(CASES)
def test_scenario_05_a_chat_of_three_turns(layout, look_ahead):
    """02 scenario 5: at most five tokens a turn are evaluated, whatever the layers."""
    rig = CheckedRig(layout, look_ahead)
    said = []
    for turn in range(3):
        said += range(100 * turn + 1, 100 * turn + 5)
        found = rig.run(said, reply := list(range(100 * turn + 50, 100 * turn + 57)))
        assert found.remaining <= 5, turn
        said += reply


@each(CASES)
def test_scenario_06_a_user_node_outlives_a_sibling_but_not_the_budget(layout, look_ahead):
    """02 scenario 6: CMP-1, CMP-3."""
    rig = CheckedRig(layout, look_ahead)
    end = 8 - look_ahead
    rig.run(PROMPT[:12], [200, 201, 202])
    rig.run([*PROMPT[:8], 50, 51, 52, 53])
    (kept,) = [node for node in rig.nodes if node.end == end]
    assert kept.user
    assert len(kept.children) == 2
    rig.run(range(300, 310))
    rig.prefix.set_budget(0)
    rig.check()
    assert rig.found(PROMPT) == 0


@each(CASES)
def test_scenario_07_a_capture_past_the_end_of_the_prefill_makes_no_node(layout, look_ahead):
    """02 scenario 7: ATT-3. The schedule is drained all the same."""
    rig = CheckedRig(layout, look_ahead)
    begun = rig.run(PROMPT, chunk=9, cancel_after=1)
    assert max(capture.offset for capture in begun.pending) > 9
    assert rig.ends == [8 - look_ahead, 9]
    assert rig.found(PROMPT) == 9


@each(CASES)
def test_scenario_08_a_hit_touches_only_the_frontier(layout, look_ahead):
    """02 scenario 8: SWI-9. Ancestors age, so that a busy conversation cannot pin its own past."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, [200, 201])
    rig.run([*PROMPT[:30], 1, 2, 3, 4, 5, 6])
    before = {id(node): node.last_used for node in rig.nodes}
    with rig.prefix.begin([*PROMPT, 200, 201, 7, 8]) as session:
        assert session.cached
        frontier = rig.prefix.path[-1]
        touched = [node for node in rig.nodes if node.last_used != before.get(id(node))]
        assert touched == [frontier]
        assert frontier.last_used > max(before.values())


@each(REWINDING)
def test_scenario_11_a_request_that_resumed_inside_an_edge_outlives_its_tail(layout, look_ahead):
    """02 scenario 11: SWI-8. The edge is split where the request resumed, so what it stores fits
    what stays when the tail is evicted.
    """
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    other = [*PROMPT[:20], *range(300, 320)]

    def evict():
        rig.prefix.set_budget(0)
        rig.prefix.set_budget(1 << 30)
        assert rig.found(PROMPT) == 20 - look_ahead

    assert rig.run(other, [330, 331, 332], during=evict).cached == 20 - look_ahead
    third = rig.run([*PROMPT[:20], *range(400, 410)])
    assert third.matched == third.cached == 20 - look_ahead
    whole = rig.run([*other, 330, 331, 332, 5])
    assert whole.matched == whole.cached == 42
    rig.check_released()


@each(REWINDING)
@pytest.mark.parametrize("beyond", [(), (500, 501, 502)], ids=["to its end", "and beyond"])
def test_scenario_12_a_request_that_follows_the_split_edge_mends_it(layout, look_ahead, beyond):
    """02 scenario 12: SWI-11, CMP-1."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    assert rig.ends == [48]
    again = rig.run(PROMPT[:21], [*PROMPT[21:], 200, 201, *beyond])
    assert again.cached == 20
    assert rig.ends == [48 + len(beyond)]


@each(STUBBORN)
def test_scenario_13_a_reply_that_begins_a_stored_one_leaves_a_state_at_its_end(layout, look_ahead):
    """02 scenario 13: CLO-5. The head that it splits off has rows already, but no state."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT[:12], range(200, 212))
    rig.run(PROMPT[:12], range(200, 206))
    assert rig.offset == 17
    assert rig.ends == [17, 23]
    (head,) = [fact for fact in rig.prefix.nodes() if fact.end == 17]
    assert head.complete
    rig.run(range(400, 420))
    onward = rig.run([*PROMPT[:12], *range(200, 206), 7, 8, 9])
    assert onward.cached == 17


@each(CASES)
def test_scenario_17_every_capture_of_a_resumed_prefill_can_be_restored(layout, look_ahead):
    """02 scenario 17: 02 STR-8, 02 SCH-1. An edge that had grown in place would no longer fit the
    captures, which cover the new tokens only.
    """
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT[:14], chunk=9)
    rig.run(PROMPT, chunk=9)
    captured = [offset - look_ahead for offset in (8, 10, 16, 24, 32, 40, 43)]
    assert set(captured) <= set(rig.ends)
    rig.run(range(400, 420))  # everything that was live is copied out
    for offset in reversed(captured):
        probe = rig.run([*PROMPT[: offset + look_ahead], 1, 2, 3])
        assert probe.matched == probe.cached == offset
    rig.check_released()


@each(CASES)
def test_scenario_19_a_short_prefix_of_a_long_conversation_written_past_its_snapshots(
    layout, look_ahead
):
    """02 scenario 19: 01 KV-4. The rig compares the bytes of all that is stored."""
    rig = CheckedRig(layout, look_ahead)
    rig.run(PROMPT, range(200, 240), chunk=9)
    rig.run([*PROMPT[:10], *range(300, 400)], chunk=7)
    whole = rig.run([*PROMPT, *range(200, 240), 5])
    assert whole.matched == whole.cached == len(PROMPT) + 39


@each(REWINDING)
def test_scenario_21_a_match_inside_an_edge_is_used_to_the_token(layout, look_ahead):
    """02 scenario 21: no falling back to the parent, be the edge live or copied out."""
    rig = CheckedRig(layout, look_ahead, captures=NEVER)
    rig.run(PROMPT, [200, 201])
    for shared in (30, 20):
        live = rig.run([*PROMPT[:shared], 1, 2])
        assert live.matched == live.cached == shared - look_ahead
        rig.run(range(400, 420))
    stored = rig.run([*PROMPT[:40], 3, 4])
    assert stored.matched == stored.cached == 40 - look_ahead
